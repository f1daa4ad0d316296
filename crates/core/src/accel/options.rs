//! Declaration of the options types: tuned values, one type for each mechanism.
//!
//! Each type is declared in the folder of its mechanism, and [`super::Options`] has all of them. A field documents its
//! unit where its type does not, and what its default rests on: an RFC, a table in `crates/sim/tests/tables`, a random
//! history of `crates/sim/tests/accel/history.rs`, a measurement, or an estimate, which is then given. The components of
//! a mechanism keep a reference to its options, so that a test or a simulation can vary one value.
//!
//! Bounds on memory and facts of protocols are constants beside their use, because nothing is gained by varying them.

/// Declares an options type: its fields with their documentation and, beside it, their defaults.
macro_rules! options {
    ($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$field_doc:meta])* pub $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// The values in use.
            pub const DEFAULT: Self = Self { $($field: $default,)* };
        }

        impl Default for $name {
            fn default() -> Self {
                Self::DEFAULT
            }
        }

        impl Default for &'static $name {
            fn default() -> Self {
                &$name::DEFAULT
            }
        }
    };
}
pub(crate) use options;

//! Saturating arithmetic that the units have in common.

/// Implements addition, subtraction and sums for a unit that wraps a `u64`, and `Debug` as `Display`.
macro_rules! saturating_unit {
    ($unit:ident) => {
        impl core::ops::Add for $unit {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl core::ops::AddAssign for $unit {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl core::ops::Sub for $unit {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl core::ops::SubAssign for $unit {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl core::iter::Sum for $unit {
            fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
                parts.fold(Self(0), core::ops::Add::add)
            }
        }

        impl core::fmt::Debug for $unit {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// Implements multiplication by an integer for a unit that wraps a `u64`.
macro_rules! saturating_multiple {
    ($unit:ident) => {
        impl core::ops::Mul<u64> for $unit {
            type Output = Self;
            fn mul(self, by: u64) -> Self {
                Self(self.0.saturating_mul(by))
            }
        }
    };
}

/// Implements division by an integer for a unit that wraps a `u64`.
macro_rules! saturating_fraction {
    ($unit:ident) => {
        impl core::ops::Div<u64> for $unit {
            type Output = Self;
            /// Rounds down; dividing by zero gives the maximum.
            fn div(self, by: u64) -> Self {
                Self(self.0.checked_div(by).unwrap_or(u64::MAX))
            }
        }
    };
}

pub(super) use {saturating_fraction, saturating_multiple, saturating_unit};

//! One progress bar as text: with characters of Unicode, or of ASCII where the locale has no others.

/// Characters of which bars are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BarStyle {
    /// `━━━╸    `
    Unicode,
    /// `===>    `
    Ascii,
}

impl BarStyle {
    /// Selects the characters by the locale: Unicode for UTF-8 locales.
    pub(super) fn of_locale() -> Self {
        let names = ["LC_ALL", "LC_CTYPE", "LANG"];
        let set = names.iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty());
        let value = set.unwrap_or_default().to_ascii_lowercase();
        if value.contains("utf-8") || value.contains("utf8") { Self::Unicode } else { Self::Ascii }
    }

    /// Bar of `width` characters for `part` of `whole`. Without a known `whole` it shows no share.
    pub(super) fn bar(self, part: u64, whole: Option<u64>, width: usize) -> String {
        let whole = whole.filter(|whole| *whole > 0);
        let full = whole.map_or(0, |whole| (u128::from(part) * width as u128 / u128::from(whole)) as usize);
        let full = full.min(width);
        let (body, head) = match self {
            Self::Unicode => ("━", "╸"),
            Self::Ascii => ("=", ">"),
        };
        let mut bar = body.repeat(full);
        if full < width && part > 0 {
            bar += head;
        }
        let drawn = full + usize::from(full < width && part > 0);
        bar + &" ".repeat(width - drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_the_requested_width_for_any_numbers() {
        for (part, whole) in [(0, None), (5, None), (0, Some(0)), (7, Some(0)), (u64::MAX, Some(1)), (1, Some(3))] {
            for width in [0, 1, 10] {
                assert_eq!(BarStyle::Unicode.bar(part, whole, width).chars().count(), width, "{part}/{whole:?}");
            }
        }
        assert_eq!(BarStyle::Ascii.bar(1, Some(2), 4), "==> ");
        assert_eq!(BarStyle::Ascii.bar(2, Some(2), 4), "====");
    }
}

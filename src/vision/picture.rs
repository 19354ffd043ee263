//! A decoded picture: upright, three channels of 8 bits.

/// Rows from top to bottom, pixels from left to right, red, green and blue for each.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// A picture of bytes that are decoded already; `None` where their number is not `width * height * 3` or a side is 0.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Option<Picture> {
        let n_bytes = width.checked_mul(height)?.checked_mul(3)?;
        (n_bytes > 0 && rgb.len() == n_bytes).then_some(Picture { width, height, rgb })
    }

    /// Pixels across.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Pixels down.
    pub fn height(&self) -> usize {
        self.height
    }

    /// `width * height * 3` bytes.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({} x {})", self.width, self.height)
    }
}

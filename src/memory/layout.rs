//! What state a model's layers have, and in which types it is kept.

use std::fmt;
use std::str::FromStr;

use ggml::Dtype;

/// State of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Elements of a key head.
    pub d_k: usize,
    /// Elements of a value head.
    pub d_v: usize,
    /// Positions that a token sees, its own and those just before it; `None` for all before it.
    pub window: Option<usize>,
    /// The values are the first `d_v` elements of the keys, of which there is one head, and nothing else is kept: the latent
    /// rows of multi-head latent attention. Their type is that of the keys.
    pub latent: bool,
}

/// State of one recurrent layer: a Gated DeltaNet, a Mamba-2 mixer, or a convolution alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// Earlier inputs that the convolution needs: its width less one.
    pub n_conv: usize,
    /// Channels of the convolution.
    pub n_channels: usize,
    /// Heads: value heads of a delta net; 0 where the convolution is all there is.
    pub n_heads: usize,
    /// Elements of a row of each head's state.
    pub d_state: usize,
    /// Rows of each head's state; as many as a row has elements in a delta net.
    pub d_head: usize,
}

impl Recurrent {
    /// Elements of the convolution's last inputs.
    pub fn n_conv_state(&self) -> usize {
        self.n_conv * self.n_channels
    }

    /// Elements of the state of all heads.
    pub fn n_head_state(&self) -> usize {
        self.d_state * self.d_head * self.n_heads
    }

    /// Bytes of one sequence's state.
    pub fn n_bytes(&self) -> usize {
        4 * (self.n_conv_state() + self.n_head_state())
    }
}

/// State of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// None at all.
    None,
    /// Keys and values of every position, or of those within a window.
    Kv(Kv),
    /// One matrix for each head, and the last inputs of the convolution in front of them.
    Recurrent(Recurrent),
}

/// State of all layers, in order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StateLayout {
    /// One for each layer.
    pub layers: Vec<LayerState>,
}

impl StateLayout {
    /// True when some layer's state cannot be cut at an earlier position.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|l| matches!(l, LayerState::Recurrent(_)))
    }

    /// The latent layers.
    pub(crate) fn latent(&self) -> impl Iterator<Item = Kv> + '_ {
        self.layers
            .iter()
            .filter_map(|l| if let LayerState::Kv(kv) = l { Some(*kv) } else { None })
            .filter(|kv| kv.latent)
    }

    /// Windows that its attention layers have, "all before it" being one; 1 at least.
    pub fn n_windows(&self) -> usize {
        CellKinds::of(self).windows.len().max(1)
    }
}

/// What the attention layers have in common: layers of one window see the same cells, and those whose values are as wide
/// besides keep them at the same places.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellKinds {
    /// The windows that there are.
    pub(crate) windows: Vec<Option<usize>>,
    /// A window's number, and elements of one position's values.
    pub(crate) values: Vec<(usize, usize)>,
    /// For each layer its numbers in these lists; `None` for one without cells.
    of_layer: Vec<Option<(usize, usize)>>,
}

impl CellKinds {
    pub(crate) fn of(layout: &StateLayout) -> Self {
        let mut kinds = Self::default();
        for layer in &layout.layers {
            let of_layer = match layer {
                LayerState::Kv(kv) => {
                    let window = number(&mut kinds.windows, kv.window);
                    let values = (window, kv.n_head_kv * kv.d_v);
                    Some((window, if kv.latent { 0 } else { number(&mut kinds.values, values) }))
                }
                LayerState::None | LayerState::Recurrent(_) => None,
            };
            kinds.of_layer.push(of_layer);
        }
        kinds
    }

    /// The number of a layer's window; 0 for a layer without cells.
    pub(crate) fn window_of(&self, il: usize) -> usize {
        self.of_layer.get(il).copied().flatten().map_or(0, |(window, _)| window)
    }

    /// The number of a layer's kind of values, likewise.
    pub(crate) fn values_of(&self, il: usize) -> usize {
        self.of_layer.get(il).copied().flatten().map_or(0, |(_, values)| values)
    }
}

/// The number of `item` in `list`, where it is put if it is not there.
pub(crate) fn number<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

/// Types that keys and values are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CacheType {
    /// 4 bytes an element, exact.
    F32,
    /// 2 bytes.
    #[default]
    F16,
    /// 1.06 bytes.
    Q8_0,
    /// 0.75 bytes, with a minimum.
    Q5_1,
    /// 0.69 bytes.
    Q5_0,
    /// 0.63 bytes, with a minimum.
    Q4_1,
    /// 0.56 bytes, uneven steps.
    Iq4Nl,
    /// 0.56 bytes.
    Q4_0,
}

impl CacheType {
    /// All of them.
    pub const ALL: [CacheType; 8] = [
        CacheType::F32,
        CacheType::F16,
        CacheType::Q8_0,
        CacheType::Q5_1,
        CacheType::Q5_0,
        CacheType::Q4_1,
        CacheType::Iq4Nl,
        CacheType::Q4_0,
    ];

    /// The element type.
    pub fn dtype(self) -> Dtype {
        match self {
            CacheType::F32 => Dtype::F32,
            CacheType::F16 => Dtype::F16,
            CacheType::Q8_0 => Dtype::Q8_0,
            CacheType::Q5_1 => Dtype::Q5_1,
            CacheType::Q5_0 => Dtype::Q5_0,
            CacheType::Q4_1 => Dtype::Q4_1,
            CacheType::Iq4Nl => Dtype::IQ4_NL,
            CacheType::Q4_0 => Dtype::Q4_0,
        }
    }

    /// The largest number that is kept as a finite one: larger ones overflow, a block's in its scale (F16, for so many steps) or
    /// its minimum (F16). F32 stops where products of keys could overflow.
    pub(crate) fn most(self) -> f32 {
        const F16: f32 = 65504.0;
        match self {
            CacheType::F32 => 1e30,
            CacheType::F16 => F16,
            CacheType::Q8_0 => 127.0 * F16,
            // The scale is that of a difference, which is twice as large at most.
            CacheType::Q5_1 | CacheType::Q4_1 => F16,
            CacheType::Q5_0 => 16.0 * F16,
            CacheType::Iq4Nl => 113.0 * F16,
            CacheType::Q4_0 => 8.0 * F16,
        }
    }

    /// Numbers in F16 that a block begins with; 0 where there are no blocks.
    pub(crate) fn n_scales(self) -> usize {
        match self {
            CacheType::F32 | CacheType::F16 => 0,
            CacheType::Q8_0 | CacheType::Q5_0 | CacheType::Iq4Nl | CacheType::Q4_0 => 1,
            CacheType::Q5_1 | CacheType::Q4_1 => 2,
        }
    }

    /// True when elements are stored one by one, so that values can be kept transposed.
    pub fn is_plain(self) -> bool {
        matches!(self, CacheType::F32 | CacheType::F16)
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dtype().name())
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|t| t.dtype().name() == s);
        let all = || Self::ALL.map(|t| t.dtype().name()).join(", ");
        found.ok_or_else(|| format!("cache type `{s}` is not one of {}", all()))
    }
}

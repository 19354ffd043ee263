//! What state a model's layers have, and in which types it is kept.

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
    /// The heads are those of a Gated DeltaNet, whose tokens can be logged instead of the states that they leave.
    pub is_delta_net: bool,
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

impl LayerState {
    /// The state of a recurrent layer.
    pub(crate) fn recurrent(&self) -> Option<Recurrent> {
        match self {
            Self::Recurrent(r) => Some(*r),
            Self::None | Self::Kv(_) => None,
        }
    }
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

//! The instruction sets that kernels are written for, which of them the processor has, and which one is used.

use std::sync::OnceLock;

/// The instructions that a kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// One value at a time: slow, the measure of the others. Only by name.
    Scalar,
    /// 256-bit integers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 256-bit integers with VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// 512-bit integers with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// As `Avx512`, with tiles for products of many columns.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// 128-bit integers with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// As `Neon`, with products of two by two rows of bytes.
    #[cfg(target_arch = "aarch64")]
    I8mm,
}

impl Isa {
    /// What is added to the quants of activations for `Q8_0`, modulo 256: VNNI multiplies unsigned with signed bytes.
    pub(crate) fn bias(self) -> u8 {
        match self {
            Isa::Scalar => 0,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => 0,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => 0x80,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::I8mm => 0,
        }
    }

    /// True if products read the offsets of quantised columns.
    pub(crate) fn wants_offsets(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => true,
            _ => false,
        }
    }

    /// True if products read pairs of quantised columns.
    pub(crate) fn wants_pairs(self) -> bool {
        match self {
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => true,
            _ => false,
        }
    }

    /// True if products of many columns are made with tiles.
    pub(crate) fn has_tiles(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => true,
            _ => false,
        }
    }

    /// True for the one that is a measure of bits and not of time.
    pub fn is_reference(self) -> bool {
        self == Isa::Scalar
    }

    /// The instruction sets that this CPU has, best first, whatever ggml was compiled for.
    #[cfg(target_arch = "x86_64")]
    pub fn available() -> Vec<Isa> {
        let has_avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let has_avx512 = has_avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        let has_vnni = has_avx2 && is_x86_feature_detected!("avxvnni");
        let has_amx = has_avx512 && crate::amx::tiles::available();
        let all = [
            (Isa::Amx, has_amx),
            (Isa::Avx512, has_avx512),
            (Isa::AvxVnni, has_vnni),
            (Isa::Avx2, has_avx2),
            (Isa::Scalar, true),
        ];
        all.into_iter().filter(|isa| isa.1).map(|isa| isa.0).collect()
    }

    /// The instruction sets that this CPU has, best first. Their results have the bits that they have on x86-64.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn available() -> Vec<Isa> {
        let mut all = vec![Isa::Scalar];
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            all.insert(0, Isa::Neon);
            if std::arch::is_aarch64_feature_detected!("i8mm") {
                all.insert(0, Isa::I8mm);
            }
        }
        all
    }

    /// The instruction set that every node is computed with, chosen once; `None` where ggml is to compute.
    pub fn chosen() -> Option<Isa> {
        static CHOSEN: OnceLock<Option<Isa>> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let available = Isa::available();
            let wanted = std::env::var("NEXTN_KERNELS").unwrap_or_default();
            let named = |name: &str| available.iter().copied().find(|p| format!("{p:?}").eq_ignore_ascii_case(name));
            let best = available.first().copied().filter(|p| !p.is_reference());
            let chosen = match wanted.as_str() {
                "" | "on" => best,
                "off" => None,
                name => named(name),
            };
            if chosen.is_none() && !["", "on", "off"].contains(&wanted.as_str()) {
                tracing::warn!("NEXTN_KERNELS={wanted}: ggml computes, as there are only {available:?} here, or off");
            }
            tracing::debug!(isa = ?chosen, "kernels");
            chosen
        })
    }
}

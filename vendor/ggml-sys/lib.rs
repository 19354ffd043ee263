//! ggml's C interface as Rust declarations, linked with a ggml that the build script compiled. Owns no logic and no safety:
//! the crate `ggml` is the one user. `bindings.rs` comes from `scripts/bindings.sh`; feature `buildtime-bindgen` makes it anew.

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, clippy::all)]
mod bindings {
    #[cfg(not(feature = "buildtime-bindgen"))]
    include!("bindings.rs");
    #[cfg(feature = "buildtime-bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

unsafe extern "C" {
    /// `plan.cpp`: lets `backend` order `graph` and numbers it, then puts into `plan` the graph to plan memory for.
    ///
    /// # Safety
    /// `backend` and `graph` are alive, and `plan` may be written to. What comes back is null, or an arena that holds
    /// `plan` and must be freed after its memory was planned and before `graph`'s arena.
    pub fn nextn_plan_graph(
        backend: ggml_backend_t,
        graph: *mut ggml_cgraph,
        plan: *mut *mut ggml_cgraph,
    ) -> *mut ggml_context;

    /// `build/rpc.rs`: true when `backend` computes on another machine and the connection to it has broken. What was
    /// asked of it since is zeros.
    ///
    /// # Safety
    /// `backend` is alive.
    pub fn nextn_rpc_lost(backend: ggml_backend_t) -> bool;

    /// `build/rpc.rs`: the version of the RPC protocol, its major number above the lowest eight bits, the minor in them.
    pub fn nextn_rpc_version() -> u32;

    /// `wait.c`: whether threads of ggml's CPU backend give way, since other programs want the processors.
    pub fn nextn_set_crowded(crowded: bool);
}

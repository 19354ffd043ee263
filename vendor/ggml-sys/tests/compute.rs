//! The compiled library is the one that the crate's version names, and it computes.

use ggml_sys::*;
use std::ffi::CStr;

#[test]
fn the_library_has_the_version_in_the_crates_metadata() {
    // SAFETY: gives a pointer to a constant string of the library.
    let version = unsafe { ggml_version() };
    // SAFETY: the string is ended by a zero and lives as long as the program.
    let version = unsafe { CStr::from_ptr(version) }.to_str().expect("ggml's version is ASCII");
    assert_eq!(env!("CARGO_PKG_VERSION").split_once("+ggml."), Some(("0.1.0", version)));
    assert_eq!(BINDINGS_VERSION, version);
}

#[test]
#[allow(clippy::multiple_unsafe_ops_per_block)] // One promise covers this short program of C calls.
fn two_numbers_are_added_on_the_cpu_by_a_persistent_threadpool() {
    // SAFETY: every pointer below is made here, checked for null where the call may give one, used before it is freed, and
    // freed once; the tensors hold one F32 each, so four bytes go in and out.
    unsafe {
        let backend = ggml_backend_cpu_init();
        assert!(!backend.is_null());
        let mut params = ggml_threadpool_params_default(2);
        let pool = ggml_threadpool_new(&mut params);
        assert!(!pool.is_null());
        ggml_backend_cpu_set_n_threads(backend, 2);
        ggml_backend_cpu_set_threadpool(backend, pool);

        let mem_size = 8 * ggml_tensor_overhead() + ggml_graph_overhead();
        let ctx = ggml_init(ggml_init_params { mem_size, mem_buffer: std::ptr::null_mut(), no_alloc: true });
        assert!(!ctx.is_null());
        let a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
        let b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
        let sum = ggml_add(ctx, a, b);
        let graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, sum);
        let buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
        assert!(!buffer.is_null());

        // The pool outlives a graph: two runs, two answers.
        for (x, y) in [(2.0_f32, 3.0_f32), (-1.5, 0.25)] {
            ggml_backend_tensor_set(a, (&raw const x).cast(), 0, 4);
            ggml_backend_tensor_set(b, (&raw const y).cast(), 0, 4);
            assert_eq!(ggml_backend_graph_compute(backend, graph), GGML_STATUS_SUCCESS);
            let mut z = 0.0_f32;
            ggml_backend_tensor_get(sum, (&raw mut z).cast(), 0, 4);
            assert_eq!(z, x + y);
        }

        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
        ggml_backend_free(backend);
        ggml_threadpool_free(pool);
    }
}

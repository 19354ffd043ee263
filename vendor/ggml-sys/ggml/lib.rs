//! Empty: this package exists for its dependency, whose folder the build script of `nextn-ggml-sys` looks up.

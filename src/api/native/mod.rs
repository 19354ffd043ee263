//! llama.cpp's own endpoints, a file each.

//! Models: loading, blocks, one file per architecture, graphs of one pass.

//! Sequence state: attention KV, recurrent and convolution state, transactions with rollback.

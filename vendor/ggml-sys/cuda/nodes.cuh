// Questions about nodes of a graph and where they lie.
#pragma once

#include "ggml.h"

namespace nextn {

// Where parameters of our own begin in a node with a function, and the first of them, which tells its kind: those of src/kernels.
constexpr int FIRST_PARAMETER = 8;
constexpr int32_t GUMBEL = 0x6e6f6973, MASK_OF_SPANS = 0x6d61736b, SHORT_CONV = 0x636f6e76, DELTA_RULE = 0x64656c74, STORE_TURBO = 0x73746f72,
    ATTEND_CELLS = 0x61747463, ALL_REDUCE = 0x616c6c72,
    ALL_GATHER = 0x616c6c67;

inline bool computes_nothing(const ggml_tensor * node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW || node->op == GGML_OP_PERMUTE ||
        node->op == GGML_OP_TRANSPOSE;
}

// A tensor whose values these are in the same order.
inline const ggml_tensor * root_of(const ggml_tensor * t) {
    while (t->op == GGML_OP_RESHAPE) {
        t = t->src[0];
    }
    return t;
}

// They have no byte in common.
inline bool are_apart(const ggml_tensor * a, const ggml_tensor * b) {
    const char * first = (const char *) a->data, * second = (const char *) b->data;
    return first + ggml_nbytes(a) <= second || second + ggml_nbytes(b) <= first;
}

}  // namespace nextn

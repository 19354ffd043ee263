// Questions about nodes of a graph and where they lie.
#pragma once

#include "ggml.h"

namespace nextn {

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

// What ggml's CPU backend uses of Windows' headers and older ones of mingw-w64 lack (scripts/mingw.sh).
#pragma once

#define THREAD_POWER_THROTTLING_CURRENT_VERSION 1
#define THREAD_POWER_THROTTLING_EXECUTION_SPEED 1

typedef struct {
    unsigned long Version;
    unsigned long ControlMask;
    unsigned long StateMask;
} THREAD_POWER_THROTTLING_STATE;

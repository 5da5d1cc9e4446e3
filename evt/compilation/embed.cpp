// The kernel's cubin as read-only data of the library: `extern "C" char const evt_cubin[]`.
asm(R"(
    .pushsection .rodata, "a"
    .balign 16
    .globl evt_cubin
    .hidden evt_cubin
    .type evt_cubin, %object
evt_cubin:
    .incbin "kernel.cubin"
    .size evt_cubin, . - evt_cubin
    .popsection
)");

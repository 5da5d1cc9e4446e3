"""Words that cannot name a registered function, or a parameter of one."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words that name no function: words of the language, predefined names, operations and types. A test compares them with
#: those rooms.
LANGUAGE = _words(
    "in out def acc A B C D bias k l m n "
    "sum mean var argmax argmin iota size matmul rand dropout even odd swap interleave "
    "gemm linear grouped_gemm conv1d conv2d conv3d conv1d_dgrad conv2d_dgrad conv3d_dgrad "
    "conv1d_wgrad conv2d_wgrad conv3d_wgrad "
    "nan inf infinity NaN INF Inf NAN Infinity "
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega "
    "f64 f32 tf32 f16 bf16 e4m3 e5m2 i64 i32 i8 u8 i4 u4 b1 float64 double fp64 float32 float fp32 single tfloat32 "
    "float16 half fp16 bfloat16 fp8_e4m3 float8_e4m3fn fp8 fp8_e5m2 float8_e5m2 int64 s64 int32 int s32 int8 s8 uint8 "
    "int4 s4 uint4 bool bit"
)
#: Words that name no parameter, because expressions use them: C++ keywords and namespaces.
CXX = _words(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class "
    "compl concept const const_cast consteval constexpr constinit continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile "
    "wchar_t while xor xor_eq std evt fn cute cutlass"
)

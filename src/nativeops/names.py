# SPDX-License-Identifier: Apache-2.0
"""Words of C++ that Python would take for a name."""

import re

# What a kernel could not be called, although Python would let it.
_CPP_WORDS = re.compile(
    "alignas|alignof|and_eq|asm|auto|bitand|bitor|bool|case|catch|char|char8_t|char16_t|char32_t"
    "|co_await|co_return|co_yield|compl|concept|const|consteval|constexpr|constinit|const_cast"
    "|decltype|default|delete|do|double|dynamic_cast|enum|explicit|export|extern|false|float|friend"
    "|goto|inline|int|long|mutable|namespace|new|noexcept|not_eq|nullptr|operator|or_eq|private"
    "|protected|public|register|reinterpret_cast|requires|short|signed|sizeof|static|static_assert"
    "|static_cast|struct|switch|template|this|thread_local|throw|true|typedef|typeid|typename|union"
    "|unsigned|using|virtual|void|volatile|wchar_t|xor|xor_eq"
    # Types of kernels, and macros of headers that they include.
    "|assert|bf16|errno|f16|offsetof|stderr|stdin|stdout|va_arg|va_copy|va_end|va_start"
)


def is_cpp_word(name: str) -> bool:
    """Whether C++, or a header that every kernel includes, keeps this word to itself."""
    return bool(_CPP_WORDS.fullmatch(name))

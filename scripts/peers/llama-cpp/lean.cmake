# Read after llama.cpp's project() by way of CMAKE_PROJECT_llama.cpp_INCLUDE. The binding needs libllama alone, but builds
# llama.cpp's library of command-line helpers, too, which doubles the time.
set(LLAMA_BUILD_COMMON OFF)

# The CUDA compiler and libraries; included only where a toolkit was found. Device code is C++17, so that CUDA 11.8 compiles it
# for Volta. cuBLASLt and cuDNN are linked directly, with an RPATH; cudart statically, so that a machine without a driver starts.
set(TRAINER_CUDA_ARCHITECTURES "" CACHE STRING "Cards to compile for, as compute capability x 10 (default: 80;90, or 70;80;90 before CUDA 13)")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  if(TRAINER_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${TRAINER_CUDA_ARCHITECTURES})
  elseif(CUDAToolkit_VERSION VERSION_LESS 13)
    set(CMAKE_CUDA_ARCHITECTURES 70 80 90)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

find_program(TRAINER_CCACHE ccache)
if(TRAINER_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TRAINER_CCACHE})
endif()

find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
add_library(trainer_cudnn INTERFACE)
target_include_directories(trainer_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE})
target_link_libraries(trainer_cudnn INTERFACE ${CUDNN_LIBRARY})

add_library(trainer_cuda_flags INTERFACE)
target_compile_options(trainer_cuda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Wno-deprecated-gpu-targets
                       $<$<BOOL:${TRAINER_WARNINGS_AS_ERRORS}>:-Werror=all-warnings>>)

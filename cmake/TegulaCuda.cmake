# tegula._cuda: kernels for NVIDIA GPUs, in a module of their own that nothing imports until a
# device array comes. Nothing of CUDA is linked: the driver is found at run time.
#
#   TEGULA_CUDA          AUTO (where nvcc 13.0 or later is found), ON (or else an error), OFF
#   TEGULA_CUDA_TARGETS  architectures with machine code, and PTX for others; AUTO for those of this machine's
#                        GPUs, or sm_80 and sm_90a where there is none; ALL for wheels that are given away
#
# nvcc compiles device code alone, each file to a compressed fatbin that an object file carries.

set(TEGULA_CUDA_TARGETS "AUTO" CACHE STRING "GPU architectures: AUTO, ALL, or a list such as 80;90a;80-virtual")

# Each architecture costs minutes. PTX makes kernels run on the others, compiled at their first use.
function(tegula_cuda_targets)
  set(found "")
  if(TEGULA_CUDA_TARGETS STREQUAL "AUTO")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]+" found "${capabilities}")
      list(TRANSFORM found REPLACE "\\." "")
      list(FILTER found EXCLUDE REGEX "^[1-7].$")
      list(TRANSFORM found REPLACE "^90$" "90a")
      list(REMOVE_DUPLICATES found)
      # GPUs younger than this nvcc run the PTX.
      execute_process(COMMAND ${TEGULA_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
      foreach(target ${found})
        string(REGEX REPLACE "a$" "" plain ${target})
        if(NOT known MATCHES "sm_${plain}")
          list(REMOVE_ITEM found ${target})
        endif()
      endforeach()
    endif()
    if(NOT found)
      set(found 80 90a)
    endif()
    list(APPEND found 80-virtual)
  elseif(TEGULA_CUDA_TARGETS STREQUAL "ALL")
    set(found 80 90a 100 120 80-virtual)
  else()
    set(found ${TEGULA_CUDA_TARGETS})
  endif()
  set(targets ${found} PARENT_SCOPE)
endfunction()

# Where nvcc is: on the PATH, in the usual places, or among Python's packages, where a build that
# asks for `nvidia-cuda-nvcc` finds it.
function(tegula_find_nvcc)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import os, sys; print(';'.join(os.path.join(p, 'nvidia', 'cu13', 'bin') for p in sys.path if p))"
    OUTPUT_VARIABLE packaged OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_program(TEGULA_NVCC nvcc
    HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin PATHS /usr/local/cuda/bin ${packaged})
  if(NOT TEGULA_NVCC)
    set(why "nvcc was not found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${TEGULA_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" unused "${text}")
  set(version "${CMAKE_MATCH_1}")
  if(NOT version VERSION_GREATER_EQUAL 13.0)
    set(why "${TEGULA_NVCC} is of CUDA '${version}', and 13.0 or later is needed" PARENT_SCOPE)
    return()
  endif()
  # nvcc may be a script that calls another one, which knows where it lies.
  execute_process(COMMAND ${TEGULA_NVCC} -dryrun -E -x cu /dev/null ERROR_VARIABLE dryrun OUTPUT_QUIET)
  string(REGEX MATCH "INCLUDES=\"-I([^\"]+)\"" unused "${dryrun}")
  find_path(TEGULA_CUDA_INCLUDE cuda.h PATHS ${CMAKE_MATCH_1} NO_DEFAULT_PATH)
  if(NOT TEGULA_CUDA_INCLUDE)
    set(why "cuda.h was not found beside ${TEGULA_NVCC}" PARENT_SCOPE)
    return()
  endif()
  set(nvcc_version ${version} PARENT_SCOPE)
endfunction()

set(why "")
tegula_find_nvcc()
if(why)
  if(TEGULA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TEGULA_CUDA=ON, but ${why}")
  endif()
  message(STATUS "Without CUDA: ${why}")
  return()
endif()

set(flags -std=c++20 -O3 --compress-mode=size -Xcompiler=-fvisibility=hidden)
tegula_cuda_targets()
foreach(target ${targets})
  if(target MATCHES "^(.*)-virtual$")
    list(APPEND flags -gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
  else()
    list(APPEND flags -gencode arch=compute_${target},code=sm_${target})
  endif()
endforeach()

message(STATUS "CUDA ${nvcc_version}: ${TEGULA_NVCC}, for ${targets}")

file(GLOB kernels CONFIGURE_DEPENDS csrc/cuda/*.cu csrc/*/cuda/*.cu)
set(fatbins "")
set(carriers "")
set(names "")
foreach(kernel ${kernels})
  get_filename_component(name ${kernel} NAME_WE)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/fatbins/${name}.fatbin)
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/fatbins
    COMMAND ${TEGULA_NVCC} ${flags} -fatbin -MD -MF ${fatbin}.d -MT ${fatbin} -o ${fatbin} ${kernel}
    DEPENDS ${kernel} DEPFILE ${fatbin}.d
    COMMENT "Compiling ${name} for GPUs" VERBATIM)
  list(APPEND fatbins ${fatbin})
  string(APPEND carriers
    "asm(\".section .rodata\\n.balign 64\\n.hidden tegula_fatbin_${name}\\n"
    ".globl tegula_fatbin_${name}\\ntegula_fatbin_${name}: .incbin \\\"${fatbin}\\\"\\n.text\");\n"
    "extern \"C\" const unsigned char tegula_fatbin_${name}[];\n")
  string(APPEND names "tegula_fatbin_${name}, ")
endforeach()
file(CONFIGURE OUTPUT fatbins.cpp @ONLY CONTENT
"#include \"${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/fatbins.h\"
${carriers}
namespace tegula {
const void* const kFatbins[] = {${names}};
const int kFatbinCount = sizeof kFatbins / sizeof *kFatbins;
}  // namespace tegula
")
set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/fatbins.cpp PROPERTIES OBJECT_DEPENDS "${fatbins}")

file(GLOB sources CONFIGURE_DEPENDS csrc/cuda/*.cpp csrc/*/cuda/*.cpp csrc/bind/cuda/*.cpp)
pybind11_add_module(_cuda NO_EXTRAS ${sources} ${CMAKE_CURRENT_BINARY_DIR}/fatbins.cpp
  csrc/bind/views.cpp csrc/bind/exchange.cpp csrc/embedding/embedding_checks.cpp
  csrc/base/axes.cpp csrc/positional_encoding/sinusoid.cpp)
target_include_directories(_cuda PRIVATE ${TEGULA_CUDA_INCLUDE})
if(NOT "90a" IN_LIST targets)
  target_compile_definitions(_cuda PRIVATE TEGULA_WITHOUT_SM_90A)
endif()
target_compile_definitions(_cuda PRIVATE TEGULA_CUDA_TOOLKIT="${nvcc_version}")
target_link_libraries(_cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(_cuda PRIVATE -static-libstdc++
                    LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/csrc/bind/exports.map
                    $<$<CONFIG:Release>:LINKER:-s>)
target_compile_definitions(_core PRIVATE TEGULA_WITH_CUDA)
install(TARGETS _cuda LIBRARY DESTINATION tegula)

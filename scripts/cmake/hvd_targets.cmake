# How every target of the project is made: hvd_library(), hvd_program(), hvd_test(), hvd_script_test().
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# ccache where there is one. Clones share what it holds: paths below the source folder count as relative, and the
# folder a file was compiled in does not count. What a file includes is known from the compiler's own list, without a run
# of the preprocessor before. The sloppiness is what precompiled headers need.
find_program(HVD_CCACHE ccache)
if(HVD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${HVD_CCACHE})
endif()

add_library(hvd_options INTERFACE)
target_include_directories(hvd_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/runtime/include)
target_compile_options(hvd_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wsuggest-override -Wzero-as-null-pointer-constant
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety> $<$<BOOL:${HVD_WERROR}>:-Werror>)
# At -O3 GCC 12 warns of overlaps and sizes inside std::string that do not occur (its bug 105651). At -O2, in dev, it does
# not, and the same warnings are errors.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(hvd_options INTERFACE "$<$<CONFIG:Release>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>")
endif()
if(HVD_SANITIZE)
  # Without warnings: the instrumentation hides from GCC what its warnings go by, and the dev build has them all.
  target_compile_options(hvd_options INTERFACE -fsanitize=${HVD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -w)
  target_link_options(hvd_options INTERFACE -fsanitize=${HVD_SANITIZE})
endif()

if(HVD_FUZZ)
  target_compile_options(hvd_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# hvd_library(NAME SOURCES file… [DEPS target…]): a static, position-independent library of the tree.
function(hvd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC hvd_options ${ARG_DEPS})
endfunction()

# hvd_apart(file…): where a build compiles several sources of a target as one, as those with sanitizers do (headers are most of a
# file's time), these stand alone: they have names in common with others. That each source includes what it uses, the others show.
set(HVD_UNITY_BUILD ${CMAKE_UNITY_BUILD})
function(hvd_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# hvd_program(NAME SOURCES file… [DEPS target…]): a program in bin/.
function(hvd_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE hvd_options ${ARG_DEPS})
endfunction()

# A test's name in ctest: with the sanitizer before it in a sanitizer build, so that one ctest run can hold several builds.
set(HVD_TEST_PREFIX "")
if(HVD_SANITIZE)
  string(REGEX REPLACE "^(.).*" "\\1san." HVD_TEST_PREFIX "${HVD_SANITIZE}")
endif()

# Tests labelled `long` are left out of the short run of scripts/test, so are `sanitized` ones, which it has with sanitizers;
# `serial` ones run alone. Those with longer limits begin first, and otherwise the order is that of a hash, so that tests that
# wait and tests that compute run beside each other.
function(hvd_set_test_properties name timeout labels)
  if(NOT timeout)
    set(timeout 120)
  endif()
  string(MD5 place ${name})
  string(SUBSTRING ${place} 0 3 place)
  math(EXPR place "0x${place}")
  if(timeout GREATER 120)
    math(EXPR place "${place} + 4096")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${labels}" COST ${place})
  if("serial" IN_LIST labels)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# hvd_test_library(NAME [OBJECT] SOURCES file… [DEPS target…]): what several tests have in common, compiled once and as they are;
# OBJECT where it holds test cases, or what says its name to others as it is loaded: a linker would leave both in a library.
function(hvd_test_library name)
  cmake_parse_arguments(ARG "OBJECT" "" "SOURCES;DEPS" ${ARGN})
  set(kind STATIC)
  if(ARG_OBJECT)
    set(kind OBJECT)
  endif()
  add_library(${name} ${kind} ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC hvd_options hvd_test_options ${ARG_DEPS} Catch2::Catch2)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIE)
  target_precompile_headers(${name} REUSE_FROM hvd_test_headers)
endfunction()

# What only the long run builds. Where HVD_SANITIZED_FIRST is set, for a folder of tests, the short run has them with sanitizers
# alone: of what is the same in all builds and small, another compilation of the tests shows little.
add_custom_target(long_tests)
set(HVD_SANITIZED_FIRST OFF)

# hvd_sanitized_first(PROGRAM LABELS): so it is with this program of a test; LABELS then has `sanitized`, too.
function(hvd_sanitized_first program labels)
  if(HVD_SANITIZED_FIRST AND NOT HVD_SANITIZE)
    set(${labels} ${${labels}} sanitized PARENT_SCOPE)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(long_tests ${program})
  endif()
endfunction()

# hvd_test_program(NAME SOURCES file… [DEPS target…]): a Catch2 program.
function(hvd_test_program name)
  hvd_program(${name} ${ARGN} hvd_test_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests UNITY_BUILD "${HVD_UNITY_BUILD}")
  target_precompile_headers(${name} REUSE_FROM hvd_test_headers)
endfunction()

# hvd_test(NAME SOURCES file… [DEPS target…] [LABELS label…] [TIMEOUT seconds] [LONG]): a Catch2 program that ctest runs
# whole; with LONG the long run has it once more as NAME.long, with HVD_TEST_LONG, in which it leaves nothing out.
function(hvd_test name)
  cmake_parse_arguments(ARG "LONG" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  hvd_test_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  hvd_sanitized_first(${name} ARG_LABELS)
  add_test(NAME ${HVD_TEST_PREFIX}${name} COMMAND ${name})
  hvd_set_test_properties(${HVD_TEST_PREFIX}${name} "${ARG_TIMEOUT}" "${ARG_LABELS}")
  if(HVD_SANITIZE STREQUAL "thread")  # orders that the scheduler alone would not show
    hvd_command_test(${name}.delays COMMAND ${CMAKE_COMMAND} -E env HVD_FAULT_POINT=delay:1 $<TARGET_FILE:${name}>
      LABELS ${ARG_LABELS} long TIMEOUT 3600)
  endif()
  if(ARG_LONG)
    hvd_command_test(${name}.long COMMAND ${CMAKE_COMMAND} -E env HVD_TEST_LONG=1 $<TARGET_FILE:${name}>
      LABELS ${ARG_LABELS} long TIMEOUT 3600)
  endif()
endfunction()

# hvd_unit_tests(NAME PARTS part… [DEPS target…] [LABELS label…] [ENVIRONMENT NAME=VALUE…]): part_test.cc of each part in one
# program, as headers and linking are most of what a small one takes to build; ctest has each as a test of its own, part_test.
function(hvd_unit_tests name)
  cmake_parse_arguments(ARG "" "" "PARTS;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  list(TRANSFORM ARG_PARTS APPEND _test.cc OUTPUT_VARIABLE sources)
  hvd_test_program(${name} SOURCES ${sources} DEPS ${ARG_DEPS})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  hvd_sanitized_first(${name} ARG_LABELS)
  foreach(source IN LISTS sources)
    get_filename_component(part ${source} NAME_WE)
    hvd_command_test(${part} COMMAND ${name} --filenames-as-tags "[#${part}]" LABELS ${ARG_LABELS})
    set_tests_properties(${HVD_TEST_PREFIX}${part} PROPERTIES ENVIRONMENT "${ARG_ENVIRONMENT}")
  endforeach()
endfunction()

# hvd_command_test(NAME COMMAND program argument… [LABELS label…] [TIMEOUT seconds] [NEEDS program…]): any command that
# ctest runs; it fails by its exit status. A test whose programs are not there is left out by name.
function(hvd_command_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND;LABELS;NEEDS" ${ARGN})
  foreach(program IN LISTS ARG_NEEDS)
    find_program(HVD_PROGRAM_${program} ${program})
    mark_as_advanced(HVD_PROGRAM_${program})
    if(NOT HVD_PROGRAM_${program})
      hvd_leave_out(${name} "no ${program} (scripts/setup --peers)")
      return()
    endif()
  endforeach()
  add_test(NAME ${HVD_TEST_PREFIX}${name} COMMAND ${ARG_COMMAND})
  hvd_set_test_properties(${HVD_TEST_PREFIX}${name} "${ARG_TIMEOUT}" "${ARG_LABELS}")
endfunction()

# hvd_script_test(NAME SCRIPT file [ARGS argument…] [TORCH_PYTHON] [LABELS …] [TIMEOUT …] [NEEDS …]): a python3 script of
# this folder, run as above; with TORCH_PYTHON in a python3 that can import torch.distributed.
function(hvd_script_test name)
  cmake_parse_arguments(ARG "TORCH_PYTHON" "SCRIPT" "ARGS" ${ARGN})
  set(python ${HVD_PYTHON3})
  if(ARG_TORCH_PYTHON)
    set(python ${HVD_TORCH_PYTHON})
  endif()
  if(NOT python)
    hvd_leave_out(${name} "no python3 that can import torch.distributed (scripts/setup --peers)")
    return()
  endif()
  hvd_command_test(${name} COMMAND ${python} -B ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGS} ${ARG_UNPARSED_ARGUMENTS})
endfunction()

# hvd_leave_out(NAME WHY): says that a test is not run by this build; scripts/test lists all of them at its end.
set(HVD_LEFT_OUT ${CMAKE_BINARY_DIR}/tests_left_out.txt)
file(WRITE ${HVD_LEFT_OUT} "")
function(hvd_leave_out name why)
  file(APPEND ${HVD_LEFT_OUT} "${HVD_TEST_PREFIX}${name}: ${why}\n")
endfunction()

# How every target of the project is made: hvd_library(), hvd_program(), hvd_test().
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

add_library(hvd_options INTERFACE)
target_include_directories(hvd_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/runtime/include)
target_compile_options(hvd_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety> $<$<BOOL:${HVD_WERROR}>:-Werror>)
if(HVD_SANITIZE)
  target_compile_options(hvd_options INTERFACE -fsanitize=${HVD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(hvd_options INTERFACE -fsanitize=${HVD_SANITIZE})
endif()

# hvd_library(NAME SOURCES file… [DEPS target…]): a static, position-independent library of the tree.
function(hvd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC hvd_options ${ARG_DEPS})
endfunction()

# hvd_program(NAME SOURCES file… [DEPS target…]): a program in bin/.
function(hvd_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE hvd_options ${ARG_DEPS})
endfunction()

# hvd_test(NAME SOURCES file… [DEPS target…] [LABELS label…] [TIMEOUT seconds]): a Catch2 program that ctest runs whole.
function(hvd_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  hvd_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} hvd_test_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

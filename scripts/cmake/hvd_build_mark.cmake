# hvd_build_mark: <build_mark.h>, which defines HVD_BUILD_MARK, a name that is the same in two libraries only where the headers
# they share were. Included by the project it makes the target; run by the build (cmake -P) it writes the header.
if(CMAKE_SCRIPT_MODE_FILE)
  string(REPLACE "|" ";" headers "${HEADERS}")  # a path may have blanks
  foreach(header IN LISTS headers)
    file(SHA256 "${header}" hash)
    string(APPEND all ${hash})
  endforeach()
  string(SHA256 all "${all}")
  string(SUBSTRING ${all} 0 16 all)
  file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n#define HVD_BUILD_MARK hvd_of_the_same_build_${all}\n#define HVD_BUILD_MARK_NAME \"hvd_of_the_same_build_${all}\"\n")
  return()
endif()

file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/*.h ${PROJECT_SOURCE_DIR}/collectives/*.h
  ${PROJECT_SOURCE_DIR}/rendezvous/*.h)
set(mark ${CMAKE_BINARY_DIR}/generated/build_mark/build_mark.h)
list(JOIN headers "|" joined)
add_custom_command(OUTPUT ${mark}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${mark} "-DHEADERS=${joined}" -P ${CMAKE_CURRENT_LIST_FILE}
  DEPENDS ${headers} ${CMAKE_CURRENT_LIST_FILE}
  VERBATIM
  COMMENT "Generating build_mark.h")
add_custom_target(hvd_build_mark_header DEPENDS ${mark})
add_library(hvd_build_mark INTERFACE)
target_include_directories(hvd_build_mark INTERFACE ${CMAKE_BINARY_DIR}/generated/build_mark)
add_dependencies(hvd_build_mark hvd_build_mark_header)

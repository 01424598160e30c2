// Reads MNIST's file format, IDX, plain or gzip-compressed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// An array of unsigned bytes with its dimensions, the last one varying fastest.
struct IdxArray {
  std::vector<uint32_t> sizes;
  std::vector<uint8_t> bytes;
};

// Reads FILE, or FILE.gz when there is no FILE, which has to hold `dimensions` dimensions of
// unsigned bytes. Throws std::runtime_error naming the file, and the offset (after unpacking) where
// it is wrong, when it is missing, truncated, damaged, too long, or of another kind; arrays of more
// than 1 GiB are refused.
IdxArray read_idx(const std::string& file, int dimensions);

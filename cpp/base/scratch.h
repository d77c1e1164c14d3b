// Scratch vectors that grow to what is asked for and not beyond, with nothing kept while they do.
#pragma once

#include <cstddef>
#include <vector>

namespace expertree {

// At least `size` elements; what was in them is lost when it grows. (resize() alone may double the capacity, and holds the
// old block beside the new one.)
template <typename T>
void fit(std::vector<T>* scratch, size_t size) {
  if (scratch->capacity() < size) {
    std::vector<T>().swap(*scratch);
    scratch->reserve(size);
  }
  if (scratch->size() < size) scratch->resize(size);
}

}  // namespace expertree

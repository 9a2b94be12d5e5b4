// Returns the index of the last of ascending times that is not after `at`, or -1.
const last = (times, at) => {
  let low = 0, high = times.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (times[middle] <= at) low = middle + 1
    else high = middle
  }
  return low - 1
}

// Shows a replay at the time of the slider: tiles and counts.
const at = moments[Math.round(slider.value)]
const last = times => {
  let low = 0, high = times.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (times[middle] <= at) low = middle + 1
    else high = middle
  }
  return low - 1
}
const counted = i => {
  const samples = sampled[i].data, requests = asked[i].data
  const s = last(samples.seconds), r = last(requests.seconds)
  const share = r < 0 ? 0 : requests.share[r]
  const running = s < 0 ? 0 : samples.running[s], waiting = s < 0 ? 0 : samples.waiting[s]
  return `${running} running, ${waiting} waiting, ${share.toFixed(1)} % of prompt tokens found so far`
}
const told = names.map((name, i) => {
  const film = films[i]
  if (film === null) return `<p><b>${name}</b>: ${counted(i)}</p>`
  const frame = Math.max(last(film.frames.data.seconds), 0)
  const codes = film.codes.data.codes, tiles = film.tiles, counts = film.owners.map(() => 0)
  const pixels = film.map.data.image[0]
  for (let tile = 0; tile < tiles; tile += 1) {
    const code = codes[frame * tiles + tile]
    const row = Math.floor(tile / film.columns)
    pixels[tile + (film.rows - 1 - 2 * row) * film.columns] = code // the lowest row is the first
    counts[code] += 1
  }
  film.map.change.emit()
  const shares = film.owners.map((words, code) => `${words} ${(100 * counts[code] / tiles).toFixed(0)} %`)
  return `<p><b>${name}</b>: ${counted(i)}</p><p>slabs: ${shares.join(', ')}</p>`
})
const seconds = value => value.toLocaleString('en-US', {maximumFractionDigits: 1})
const html = `<h2>${seconds(at)} s of ${seconds(moments.at(-1))} s</h2>${told.join('')}`
// A new text of the model lays the whole page out again, which would halve the frames a second.
const box = now.text === '' ? undefined : Bokeh.index.find_one(now)?.markup_el
if (box) box.innerHTML = html
else now.text = html

// Counts requests, hits and slabs at the time of the slider.
const at = moments[Math.round(slider.value)]
const counted = i => {
  const samples = sampled[i].data, requests = asked[i].data
  const s = last(samples.seconds, at), r = last(requests.seconds, at)
  const share = r < 0 ? 0 : requests.share[r]
  const running = s < 0 ? 0 : samples.running[s], waiting = s < 0 ? 0 : samples.waiting[s]
  return `${running} running, ${waiting} waiting, ${share.toFixed(1)} % of prompt tokens found so far`
}
const told = names.map((name, i) => {
  const film = films[i]
  if (film === null) return `<p><b>${name}</b>: ${counted(i)}</p>`
  const first = Math.max(last(film.frames.data.seconds, at), 0) * film.count
  const counts = film.owners.map(() => 0)
  for (let tile = 0; tile < film.count; tile += 1) counts[film.tiles.data.codes[first + tile]] += 1
  const shares = film.owners
    .map((words, code) => words && `${words} ${(100 * counts[code] / film.count).toFixed(0)} %`)
    .filter(Boolean)
  return `<p><b>${name}</b>: ${counted(i)}</p><p>slabs: ${shares.join(', ')}</p>`
})
const seconds = value => value.toLocaleString('en-US', {maximumFractionDigits: 1})
const html = `<h2>${seconds(at)} s of ${seconds(moments.at(-1))} s</h2>${told.join('')}`
// A new text of the model lays the whole page out again, which would halve the frames a second.
const box = now.text === '' ? undefined : Bokeh.index.find_one(now)?.markup_el
if (box) box.innerHTML = html
else now.text = html

// Draws what each slab holds at the time of the slider, and lights the last hit.
const LIT_MOMENTS = 10, SMALLEST = 3, MOST_CELLS = 200, BETWEEN = 254, EDGE = 255
const {side, columns, rows, count, cuts, owners} = film
const GAP = owners.length, FOUND = GAP + 1, AGAIN = GAP + 2, INK = GAP + 3, UNKNOWN = 255

// Of a pool: blocks of a cell, and in which cell each pixel of a tile is, if not between cells or at the edge.
const stencil = blocks => {
  const inner = Math.max(side - 2, 1), edge = side > 2 ? 1 : 0
  const most = Math.max(Math.floor(inner / SMALLEST), 1) ** 2
  const each = Math.ceil(blocks / Math.min(most, MOST_CELLS)), cells = Math.ceil(blocks / each)
  const across = Math.ceil(Math.sqrt(cells)), down = Math.ceil(cells / across)
  const pixels = new Uint8Array(side * side).fill(EDGE)
  const fill = (value, left, top, right, bottom) => {
    for (let y = top + edge; y < bottom + edge; y += 1) pixels.fill(value, y * side + left + edge, y * side + right + edge)
  }
  fill(BETWEEN, 0, 0, inner, inner)
  for (let cell = 0; cell < cells; cell += 1) {
    const column = cell % across, row = Math.floor(cell / across)
    const ends = (at, of) => [Math.floor(at * inner / of), Math.floor((at + 1) * inner / of) - (of > 1 ? 1 : 0)]
    const [left, right] = ends(column, across), [top, bottom] = ends(row, down)
    fill(cell, left, top, right, bottom)
  }
  return {each, pixels}
}
if (film.stencils === undefined) {
  film.stencils = cuts.map(stencil)
  film.colors = film.palette.map(color => {
    const [red, green, blue] = [1, 3, 5].map(from => parseInt(color.slice(from, from + 2), 16))
    return (0xff << 24 | blue << 16 | green << 8 | red) >>> 0
  })
  film.drawn = {codes: new Uint8Array(count).fill(UNKNOWN), live: new Uint16Array(count), used: new Uint16Array(count)}
  film.lit = []
  const small = film.map.data.image[0], pixels = rows * side * columns * side
  film.map.data.image[0] = new small.constructor(pixels, [rows * side, columns * side]).fill(film.colors[GAP])
}

const at = moments[Math.round(slider.value)]
const first = Math.max(last(film.frames.data.seconds, at), 0) * count
const {codes, live, used} = film.tiles.data
film.map.first = first // for what the pointer says
const image = film.map.data.image[0], width = columns * side, {colors, drawn} = film
const paint = (tile, pool, found, again, edge) => {
  const code = codes[first + tile]
  const {each, pixels} = film.stencils[pool]
  const cells = blocks => Math.ceil(blocks / each)
  const one = cells(found), two = cells(found + again)
  const own = code > 0 && (code - 1) >> 1 === pool // a hit may come before the frame that shows its slab
  const three = Math.max(own ? cells(live[first + tile]) : 0, two)
  const four = Math.max(own ? cells(used[first + tile]) : 0, three)
  // A slab that no pool has taken is not cut.
  const between = code === 0 && edge === GAP ? 0 : GAP, running = 2 * pool + 1, left = running + 1
  const corner = Math.floor(tile / columns) * side * width + tile % columns * side
  for (let y = 0, from = 0; y < side; y += 1) {
    for (let to = corner + y * width, end = to + side; to < end; to += 1, from += 1) {
      const cell = pixels[from]
      image[to] = colors[cell === EDGE ? edge : cell === BETWEEN ? between
        : cell < one ? FOUND : cell < two ? AGAIN : cell < three ? running : cell < four ? left : 0]
    }
  }
}
// Few slabs change from one moment to the next, and only those are painted.
for (const tile of film.lit) drawn.codes[tile] = UNKNOWN
for (let tile = 0, from = first; tile < count; tile += 1, from += 1) {
  if (drawn.codes[tile] === codes[from] && drawn.live[tile] === live[from] && drawn.used[tile] === used[from]) continue
  drawn.codes[tile] = codes[from]
  drawn.live[tile] = live[from]
  drawn.used[tile] = used[from]
  paint(tile, Math.max((codes[from] - 1) >> 1, 0), 0, 0, GAP)
}

const {seconds, start, words} = film.hits.data
const hit = last(seconds, at)
film.lit = []
const isLit = hit >= 0 && at - seconds[hit] <= LIT_MOMENTS * moments[1]
if (isLit) {
  const {tile, pool, found, again, resumed} = film.parts.data
  const end = start[hit + 1] ?? tile.length
  for (let row = start[hit]; row < end; row += 1) {
    film.lit.push(tile[row])
    paint(tile[row], pool[row], found[row] + resumed[row], again[row], resumed[row] ? INK : found[row] ? FOUND : AGAIN)
  }
}
film.map.change.emit()
const html = `<p class="line">${isLit ? words[hit] : 'No request begins now.'}</p>`
const box = told.text === '' ? undefined : Bokeh.index.find_one(told)?.markup_el
if (box) box.innerHTML = html
else told.text = html

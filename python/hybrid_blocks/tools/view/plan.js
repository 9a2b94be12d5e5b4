// Draws a plan at the length of the slider. The arguments are models of Bokeh; `state` holds the data.
const plan = JSON.parse(state.data.json[0])
const index = Math.min(Math.round(slider.value), plan.lengths.length - 1)
const ROWS = 14, MOST_COLUMNS = 96, MOST_BLOCKS = 360, MIB = 2 ** 20
const length = plan.lengths[index].toLocaleString('en-US')

// The memory from its first byte to its last, as segments of equal content.
function segments(side, requests) {
  const at = side.at[index], made = []
  let used = 0
  const add = (owner, bytes, live, rounding, padding) => {
    if (bytes > 0) { made.push({owner, bytes, live, rounding, padding}); used += bytes }
  }
  if (requests === null) add('null ' + side.unit, side.null_bytes, 0, 0, 0)
  const times = requests === null ? at.requests : requests
  const pools = [...new Set(at.runs.map(run => run.pool))]
  for (const pool of pools) {
    for (const run of at.runs.filter(run => run.pool === pool)) {
      const size = run.live + run.rounding + run.padding
      add(run.owner, run.count * times * size, run.live / size, run.rounding / size, run.padding / size)
    }
    const open = (side.unit_bytes - used % side.unit_bytes) % side.unit_bytes
    if (requests === null) add('unused', open, 0, 0, 0)
  }
  if (requests === null) {
    add('unused', plan.memory_bytes - side.tail_bytes - used, 0, 0, 0)
    add('tail', plan.memory_bytes - used, 0, 0, 0)
  }
  return made
}

const FILL = {unused: colors.unused, tail: colors.tail}
const WORDS = {live: 'read by requests', rounding: 'in blocks that are not full', padding: 'padding'}

// Cuts segments into tiles of `tile` bytes in rows of `row` bytes (0: one row), each into live, rounding, padding.
function quads(list, tile, row, top, height) {
  const out = {left: [], right: [], bottom: [], top: [], color: [], kind: [], owner: [], what: []}
  const push = (left, right, low, high, color, kind, owner, what) => {
    out.left.push(left / MIB)
    out.right.push(right / MIB)
    out.bottom.push(low)
    out.top.push(high)
    out.color.push(color)
    out.kind.push(kind)
    out.owner.push(owner)
    out.what.push(what)
  }
  let at = 0
  for (const one of list) {
    let left = one.bytes
    while (left > 0) {
      const part = Math.min(left, tile - at % tile)
      const line = row ? Math.floor(at / row) : 0, x = row ? at - line * row : at
      const base = top - line - height, gap = Math.min(0.08 * tile, part / 3)
      if (one.live + one.rounding + one.padding === 0) {
        push(x, x + part - gap, base, base + height, FILL[one.owner] || colors.null, 'solid', one.owner, '')
      }
      let low = base
      for (const name of ['live', 'rounding', 'padding']) {
        const high = low + height * one[name]
        const kind = name === 'live' ? 'solid' : name
        const what = `${WORDS[name]}, ${(100 * one[name]).toFixed(1)} % of these blocks`
        if (one[name] > 0) push(x, x + part - gap, low, high, colors.owners[one.owner], kind, one.owner, what)
        low = high
      }
      at += part
      left -= part
    }
  }
  return out
}

const layouts = plan.sides.map(side => {
  const units = plan.memory_bytes / side.unit_bytes
  const merged = Math.ceil(units / (ROWS * MOST_COLUMNS))
  const tile = merged * side.unit_bytes
  return {merged, tile, row: tile * Math.ceil(units / merged / ROWS)}
})
const widest = Math.max(...layouts.map(layout => layout.row))
let longest = 0
// Without a plan of vLLM's, its place stays empty.
const slots = plan.sides.map((_, i) => i + 2 - plan.sides.length)
const columns = Object.keys(maps[0].data)
const nothing = () => Object.fromEntries(columns.map(name => [name, []]))
if (plan.sides.length === 1) {
  maps[0].data = nothing()
  requests[0].data = nothing()
  captions[0].text = ''
  curves[0].data = {length: [], running: [], held: [], shown: [], binds: []}
}
plan.sides.forEach((side, index_of_side) => {
  const {merged, tile, row} = layouts[index_of_side], i = slots[index_of_side]
  maps[i].data = quads(segments(side, null), tile, row, ROWS, 0.9)
  x_maps[i].end = widest / MIB
  const each = merged === 1 ? `a tile is one ${side.unit} of ${side.unit_text}` : `a tile is ${merged} ${side.unit}s of ${side.unit_text}`
  captions[i].text = `${side.name}: ${each}, a row ${(row / 2 ** 30).toFixed(2)} GiB`
  const own = segments(side, 1)
  const bytes = own.reduce((sum, one) => sum + one.bytes, 0)
  const smallest = Math.min(...side.at[index].runs.map(run => run.live + run.rounding + run.padding))
  const cut = side.unit === 'block' ? side.unit_bytes : smallest
  const many = Math.max(1, Math.ceil(bytes / cut / MOST_BLOCKS))
  // Each segment is cut into its own blocks, so tiles begin where the segment does.
  const drawn = {}
  let offset = 0
  own.forEach((one, k) => {
    const run = side.at[index].runs[k]
    const size = run.live + run.rounding + run.padding
    const piece = quads([one], size * (size <= cut * 1.01 ? many : 1), 0, 2 - i, 0.8)
    for (const key of Object.keys(piece)) {
      const values = key === 'left' || key === 'right' ? piece[key].map(x => x + offset / MIB) : piece[key]
      drawn[key] = (drawn[key] || []).concat(values)
    }
    offset += one.bytes
  })
  requests[i].data = drawn
  longest = Math.max(longest, bytes)
})
x_request.end = longest / MIB * 1.01

const first = plan.sides[0].at[index]
head.text = '<div class="sides">' + plan.sides.map((side, i) => {
  const at = side.at[index]
  const more = 100 * (at.running / first.running - 1)
  const change = i === 0 || Math.abs(more) < 0.5 ? '' :
    `<span class="${more > 0 ? 'gain' : 'loss'}">${more > 0 ? '+' : '−'}${Math.abs(more).toFixed(0)} %</span>`
  return `<div class="side">${side.name}<br><b>${at.shown}</b> requests of ${length} tokens at once ${change}<br>${at.binds}<br>${side.blocks}</div>`
}).join('') + '</div>' + (plan.sglang === null ? '' : `<p>SGLang at its defaults: ${plan.sglang[index]} requests at once</p>`)

const rows = Object.keys(first.parts).map(name => {
  const cells = plan.sides.map(side => {
    const share = 100 * side.at[index].shares[name]
    return `<td class="n">${side.at[index].parts[name]}</td><td class="n">${share.toFixed(2)}%</td>` +
      `<td class="bar"><span style="width:${share.toFixed(1)}%"></span></td>`
  })
  return `<tr><td>${name}</td><td>${parts[name]}</td>${cells.join('')}</tr>`
})
bytes.text = '<table><tr><th></th><th></th>' + plan.sides.map(side => `<th colspan="3">${side.name}</th>`).join('') +
  '</tr><tr><td>requests</td><td></td>' + plan.sides.map(side => `<td class="n">${side.at[index].requests.toLocaleString('en-US')}</td><td></td><td></td>`).join('') +
  `</tr>${rows.join('')}</table>`

plan.sides.forEach((side, i) => {
  curves[slots[i]].data = {
    length: plan.lengths,
    running: side.at.map(at => at.running),
    held: side.at.map(at => at.concurrency),
    shown: side.at.map(at => at.shown),
    binds: side.at.map(at => at.binds),
  }
})
marker.location = plan.lengths[index]
points.data = {
  length: plan.sides.map(() => plan.lengths[index]),
  running: plan.sides.map(side => side.at[index].running),
}
cap.data = {length: [plan.lengths[0], plan.lengths.at(-1)], most: [plan.max_num_seqs, plan.max_num_seqs]}

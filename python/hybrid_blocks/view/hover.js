// Says what the tile under the pointer holds.
const {columns, count, cuts, owners, map, tiles} = film
const tile = Math.floor(special_vars.y) * columns + Math.floor(special_vars.x)
if (tile < 0 || tile >= count) return ''
const at = (map.first ?? 0) + tile, code = tiles.data.codes[at], blocks = cuts[(code - 1) >> 1]
if (code === 0 || blocks === 1) return owners[code]
const live = tiles.data.live[at], used = Math.max(tiles.data.used[at] - live, 0)
return `${owners[2 * ((code - 1) >> 1) + 1] || owners[code]}: ${live} of ${blocks} blocks, kept or free: ${used}`

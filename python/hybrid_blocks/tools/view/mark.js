// Draws a line at the time of the slider over each plot.
// A line that Bokeh draws would paint its whole plot again, which takes most of a frame's time.
const at = moments[Math.round(slider.value)]
const place = plot => {
  plot.view ??= Bokeh.index.find_one(plot)
  const frame = plot.view?.frame
  if (!frame?.bbox.width) return false
  const over = plot.view.canvas_view.overlays_el
  if (!over.line?.isConnected) {
    over.line = over.appendChild(document.createElement('div'))
    over.line.style.cssText = 'position: absolute; left: 0; border-left: 1px dashed #1b1f24'
  }
  const {left, right, top, height} = frame.bbox, x = frame.x_scale.compute(at), style = over.line.style
  style.display = x < left || x > right ? 'none' : 'block'
  style.top = `${top}px`
  style.height = `${height}px`
  style.transform = `translateX(${x}px)`
  return true
}
const draw = () => { if (!plots.map(place).every(Boolean)) window.requestAnimationFrame(draw) }
draw()

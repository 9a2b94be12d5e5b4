// Moves the slider on, 25 times a second, until its end or until the button is released.
const MOMENT_MS = 40, MOST_AT_ONCE = 5
window.cancelAnimationFrame(window.playing)
if (button.active) {
  button.label = '❚❚ Pause'
  if (slider.value >= slider.end) slider.value = slider.start
  let shown = performance.now()
  const frame = now => {
    const due = Math.floor((now - shown) / MOMENT_MS)
    if (due > 0) {
      // A slow machine leaves moments out. A page that was hidden resumes where it stood.
      slider.value = Math.min(slider.value + Math.min(due, MOST_AT_ONCE), slider.end)
      shown += due * MOMENT_MS
    }
    if (slider.value >= slider.end) button.active = false
    else window.playing = window.requestAnimationFrame(frame)
  }
  window.playing = window.requestAnimationFrame(frame)
} else {
  button.label = '▶ Play'
}

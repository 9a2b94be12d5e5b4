// Moves the slider on, 20 times a second, until its end or until the button is released.
window.clearInterval(window.playing)
if (button.active) {
  button.label = '❚❚ Pause'
  if (slider.value >= slider.end) slider.value = 0
  window.playing = window.setInterval(() => {
    if (slider.value >= slider.end) button.active = false
    else slider.value += 1
  }, 50)
} else {
  button.label = '▶ Play'
}

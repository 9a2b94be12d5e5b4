"""Pages that draw plans and replays in a browser, the extra ``view``.

`plan_picture` and `replay_picture` turn results into plain data. `plan_page` and `replay_page` draw
by Bokeh, and `page` writes one file that opens without a network. `server` shows the page of a plan
with `controls` to its user alone.
"""

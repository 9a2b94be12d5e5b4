"""Pages that draw plans, replays and profiles in a browser, the extra ``view``.

`plan_picture` and `replay_picture` turn results into plain data. `plan_page`, `replay_page` and
`profile_page` draw by Bokeh, and `page` writes one file that opens without a network.
"""

-- What the windows share. w: {limit = N, x = W in ms}
-- Twin of crates/algorithms/src/window.rs.

local window = {}

function window.aligned_start(w, now)
  return now - now % w.x
end

-- Units left of the limit.
function window.room(w, used)
  return used < w.limit and w.limit - used or 0
end

-- A time of the state as it counts at `now`: moved to it if it lies more than
-- a window ahead, and whether it was.
function window.reconcile(w, newest, now)
  if newest - now > w.x then
    return now, true
  end
  return newest, false
end

-- Fixed window counter. Twin of crates/algorithms/src/fixed_window.rs.
--
-- State: "f<generation>:<start ms>:<used>"
-- w: kind (4: aligned to the epoch), limit (N), x (W in ms), at (start of the open window), used,
--    same (whether the count read is of the open window)

local EPOCH = 4
local STATE = 'f' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE

-- The start of the window open at `time`, and whether a stored count that started
-- at `start` belongs to it. An aligned window must hold that start, so that a
-- count survives an edit of W only in the window it belongs to; any other window
-- starts at the first admission that finds none open.
local function open_at(w, time, start)
  if w.kind == EPOCH then
    local current = time - time % w.x
    return current, start >= current
  end
  if time - start < w.x then
    return start, true
  end
  return time, false
end

local function load(w, text)
  w.used, w.at = 0, (open_at(w, now, now))
  if not text then
    return
  end
  local generation, start, used = string.match(text, '^f(%d+):(%d+):(%d+)$')
  if not generation then
    return unplain(w, text, 'f')
  end
  generation, start, used = generation + 0, start + 0, used + 0
  if not sound(generation + start + used, 1) then
    return CORRUPT
  end
  w.seen = generation
  if start - now > w.x then
    start = now
    w.shifted = string.format(STATE, generation, start, used)
  end
  local open, same = open_at(w, math.max(start, now), start)
  w.at, w.used, w.same = open, same and used or 0, same
end

-- include: lib/counted_window.lua

local function wait_ms(w)
  return w.at + w.x - now
end

local function reset_after_ms(w)
  return w.used == 0 and 0 or w.at + w.x - now
end

local function encode(w)
  return string.format(STATE, w.generation, w.at, w.used)
end

local M = {
  load = load,
  load_absent = true,
  encode = encode,
  room = room,
  charge = charge,
  overcharge = overcharge,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
}
if leased then
  local function named(w, start)
    return start == w.at and 'out'
  end
  local function give_back(w, _, units)
    w.used = math.max(0, w.used - units)
  end
  local function open(w)
    return w.at, w.at + w.x - now
  end
  local function follows()
    return false
  end
  -- include: lib/lease_window.lua
end
return M

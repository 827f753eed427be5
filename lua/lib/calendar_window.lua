-- Fixed window counter whose windows are days, weeks, months or years of a time zone.
-- Twin of crates/algorithms/src/calendar_window.rs.
--
-- A window has a label, the serial number of its local day, week, month or year, and the caller passes
-- the edges of five in a row. The window of `now` is one of the first three; else w.outside is set, and
-- nothing may be decided. A later label starts at 0; under an earlier one the stored count goes on.
--
-- State: "c<generation>:<unit>:<label>:<start ms>:<used>"
-- w: limit (N), x (unit, 1 to 5), y (label of the first window), z (its start, ms),
--    edges (the end of each window, ms), debit_serial (0: none), picked (the label of the window of now),
--    serial, at, ends (label, start and end of the open window), used,
--    same (whether the count read is of the open window)

local STATE = 'c' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE

-- A state more windows ahead than this comes from a faulty clock.
local AHEAD_MAX = 2

local function open(w, serial)
  local nth = serial - w.y
  w.serial, w.at, w.ends = serial, nth > 0 and w.edges[nth] or w.z, w.edges[nth + 1]
end

local function load(w, text)
  local nth = now >= w.edges[2] and 2 or now >= w.edges[1] and 1 or 0
  w.outside = now < w.z or now >= w.edges[3]
  w.picked, w.used, w.same = w.y + nth, 0, false
  open(w, w.picked)
  if not text then
    return
  end
  local generation, unit, serial, start, used = string.match(text, '^c(%d+):(%d+):(%d+):(%d+):(%d+)$')
  if not generation then
    return unplain(w, text, 'c')
  end
  generation, unit, serial, start, used = generation + 0, unit + 0, serial + 0, start + 0, used + 0
  if not sound(generation + serial + start + used, unit) then
    return CORRUPT
  end
  w.seen = generation
  if unit ~= w.x then
    w.same = start >= w.at and start < w.ends
  elseif serial - w.picked > AHEAD_MAX then
    w.same = true
    w.shifted = string.format(STATE, generation, unit, w.serial, w.at, used)
  elseif serial >= w.picked then
    w.same = true
    open(w, serial)
  end
  w.used = w.same and used or 0
end

-- include: lib/counted_window.lua

-- Drops units of an earlier window. Those of the next one open it; a label further ahead comes
-- from a faulty clock, and its units count now.
local function admitted(w, units)
  local serial = w.debit_serial
  if serial > 0 and serial < w.serial then
    return false
  elseif serial > w.serial and serial == w.picked + 1 then
    open(w, serial)
    w.used = 0
    if w.out then
      w.out, w.out_before, w.marks, w.marks_before = 0, 0, '', ''
    end
  end
  return charge(w, units)
end

local function wait_ms(w)
  return w.ends - now
end

local function reset_after_ms(w)
  return w.used == 0 and 0 or w.ends - now
end

local function encode(w)
  return string.format(STATE, w.generation, w.x, w.serial, w.at, w.used)
end

local M = {
  load = load,
  load_absent = true,
  encode = encode,
  room = room,
  charge = charge,
  overcharge = overcharge,
  admitted = admitted,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
  linger_ms = 93600000, -- 26 hours: zones differ by up to that, and another caller may pass other edges
}
if leased then
  local function named(w, serial)
    return serial == w.serial and 'out'
  end
  local function give_back(w, _, units)
    w.used = math.max(0, w.used - units)
  end
  local function open(w)
    return w.serial, w.ends - now
  end
  local function follows()
    return false
  end
  -- include: lib/lease_window.lua
end
return M

-- How an adaptive limit on requests in flight follows its service. Twin of crates/algorithms/src/adaptive.rs.
--
-- Included by concurrency.lua where a slot of such a limit is freed, or one is inspected. Defines hear, read_found
-- and pack_found.
--
-- A state is a list of numbers, in the order of PACKED: the limit (thousandths of a slot), the latency (ms) and
-- the share (per mille) that the counts belong to, the start of the window (ms), its answers, the late and slow
-- ones of them, the slow ones, the most slots in use, the service's own late and own slow (per mille), and of
-- the latest change the time (ms), the limit before it, and the late and slow of the window that it ended (per mille).

local LIMIT, LATENCY, SHARE, START, ANSWERS, LATE, SLOW, MOST = 1, 2, 3, 4, 5, 6, 7, 8
local OWN_LATE, OWN_SLOW, MOVED, MOVED_FROM, MOVED_LATE, MOVED_SLOW = 9, 10, 11, 12, 13, 14
local WINDOW_MIN, WINDOW_MAX, ANSWERS_MIN, ANSWERS_MAX, OVER_MAX = 1000, 60000, 20, 1000000000, 250
local PACKED, PACKED_SIZE = '<I4I4I2dI4I4I4I4I2I2dI4I2I2', 54

local function is_time(number)
  return number >= 0 and number < 2 ^ 53 and number % 1 == 0
end

-- The state in the mark that load() found; nil if there is none, or a damaged one.
local function read_found(s)
  local text = s.found
  if not text or #text ~= 1 + PACKED_SIZE then
    return
  end
  local a = { struct.unpack(PACKED, text, 2) }
  a[15] = nil -- the position after them
  return is_time(a[START]) and is_time(a[MOVED]) and a or nil
end

local function pack_found(a)
  return 'a' .. struct.pack(PACKED, unpack(a))
end

local function within(rule, limit)
  return math.max(rule.min, math.min(limit, rule.max))
end

local function restart(a, start)
  a[START], a[ANSWERS], a[LATE], a[SLOW], a[MOST] = start, 0, 0, 0, 0
end

local function learn_own(own, alone, measured, slow)
  if alone then
    return slow > 500 and 0 or math.floor((own + measured + 1) / 2)
  end
  return own - math.ceil(math.max(0, own - measured) / 16)
end

-- Ends a window.
local function judge(a, rule)
  local late, slow = math.floor(a[LATE] * 1000 / a[ANSWERS]), math.floor(a[SLOW] * 1000 / a[ANSWERS])
  local before, most = a[LIMIT], a[MOST]
  local alone = before == rule.min or most * 1000 <= rule.min
  a[OWN_LATE] = learn_own(a[OWN_LATE], alone, late, slow)
  a[OWN_SLOW] = learn_own(a[OWN_SLOW], alone, slow, slow)
  local allowed, over = a[OWN_SLOW] + 1000 - rule.share, math.max(0, late - a[OWN_LATE])
  local limit = before
  if slow > allowed and over > OVER_MAX and not alone then
    limit = math.floor(math.min(before, most * 1000) * (2000 - slow) / 2000)
  elseif slow <= allowed and over <= OVER_MAX and most * 10 >= math.floor(before / 1000) * 9 then
    local part = over <= 62 and 4 or over <= 125 and 8 or 20
    limit = before + math.max(1000, math.floor(before / part))
  end
  limit = within(rule, limit)
  if limit == before then
    return restart(a, now)
  end
  a[LIMIT], a[MOVED], a[MOVED_FROM], a[MOVED_LATE], a[MOVED_SLOW] = limit, now, before, late, slow
  restart(a, now + rule.latency)
end

-- A slot is freed and says something: 1 in time, 2 late, 3 slow; or nothing, 0. `a`: the state, if there is one;
-- returns the next.
local function hear(s, a, says)
  local rule = s.adaptive
  a = a or { rule.start, rule.latency, rule.share, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  if a[LATENCY] ~= rule.latency or a[SHARE] ~= rule.share then
    a[LATENCY], a[SHARE], a[OWN_LATE], a[OWN_SLOW] = rule.latency, rule.share, 0, 0
    restart(a, now)
  end
  if now < a[START] then
    if a[START] <= now + rule.latency then
      return a -- let in before the limit changed
    end
    restart(a, now) -- the clock stepped back
  end
  a[LIMIT] = within(rule, a[LIMIT])
  a[MOST] = math.max(a[MOST], s.used)
  if says > 0 and a[ANSWERS] < ANSWERS_MAX then
    a[ANSWERS] = a[ANSWERS] + 1
    a[LATE] = a[LATE] + (says > 1 and 1 or 0)
    a[SLOW] = a[SLOW] + (says > 2 and 1 or 0)
  end
  local age = now - a[START]
  if age >= WINDOW_MIN and a[ANSWERS] >= ANSWERS_MIN then
    judge(a, rule)
  elseif age >= WINDOW_MAX then
    restart(a, now)
  end
  return a
end

-- A queue: a leaky bucket as one (as a meter it is a token bucket), or a token bucket or GCRA as one, whose
-- capacity passes at once: passes_bursts. Twin of crates/algorithms/src/leaky_bucket.rs.
--
-- Each admitted request has a slot, the time that it has to itself; the debt of a token bucket is the end of the
-- last one. Included after a token bucket's functions and those for its leases, some of which it replaces; added:
-- delay_ms, take, free, forget. b.z is the longest delay, ms.
--
-- State: the bucket's own, then ":q<parts that drain each ms; 0: no slot was named since>:<accepts
-- names since, ms>:<freed: start,end;...>:<ms;start,end,turn;...>", all in parts after the bucket's
-- time, turns after their own. While units are leased out, only the bucket's own.
--
-- b: since, free (lists of start and end), later (freed time that counts once the caller's clock has reached
--    the bucket's, if nothing is stored before), turns (of start, end and turn; nil: turns_text is unread),
--    intact (whether they continue the stored ones), named (whether slots get names now)

local FREE_MAX, TURNS_MAX, TURN_MAX = 8, 256, 2 ^ 50
local STATE = '^(b%d+:(%d+):(%d+):(%d+)):q(%d+):(%d+):([%d,;]*):([%d,;]*)$'
local FORMAT = '%s:q' .. WHOLE .. ':' .. WHOLE .. ':%s:%s'
local PAIR = WHOLE .. ',' .. WHOLE
local TRIPLE = PAIR .. ',' .. WHOLE

local load_level, encode_level, charge_behind, wait_behind = M.load, M.encode, M.charge, M.wait_ms

-- How long before its slot a request starts, in parts: the sooner, the more of the capacity it leaves.
local function lead(b, cost)
  return passes_bursts and math.max(0, b.limit - cost) * b.x or 0
end

-- How long a request of this cost is held, whose slot begins so many parts after the bucket's time. By the
-- bucket's clock, so that spacing holds after a small step back of the caller's.
local function held_ms(b, start, cost)
  return math.ceil(math.max(0, start - lead(b, cost)) / b.y)
end

-- The largest cost whose slot may begin there, negative where not even 0 may.
local function room_at(b, start)
  local full = b.limit * b.x
  if passes_bursts then
    return math.min(b.limit, math.floor((full + b.z * b.y - start) / b.x))
  end
  return math.ceil(start / b.y) > b.z and -1 or math.floor((full - start) / b.x)
end

function M.target(b, cost)
  local fits, held = (b.limit - cost) * b.x, b.z * b.y
  return passes_bursts and fits + held or math.min(fits, held)
end

-- Parts that drain in so many ms, at most 2^53: by then all has drained.
local function drained_in(b, elapsed)
  return math.min(math.max(0, elapsed) * b.y, 2 ^ 53)
end

local function leased_out(b)
  return (b.current or 0) + (b.previous or 0) > 0
end

-- Reads freed time into a list; false if it is corrupt.
local function read_free(list, text, passed)
  local last = 0
  for start, stop in string.gmatch(text, '(%d+),(%d+)') do
    start, stop = start + 0, stop + 0
    if start < last or stop <= start or stop >= 2 ^ 52 then
      return false
    end
    last = stop
    if stop > passed then
      list[#list + 1] = { math.max(0, start - passed), stop - passed }
    end
  end
  return true
end

-- Reads turns, which few calls need.
local function turns_of(b)
  if not b.turns then
    b.turns = {}
    local at, list = string.match(b.turns_text, '^(%d+);(.*)$')
    local passed = at and drained_in(b, b.at - at)
    for start, stop, turn in string.gmatch(list or '', '(%d+),(%d+),(%d+)') do
      start, stop = start + 0, stop + 0
      if stop > passed then
        b.turns[#b.turns + 1] = { math.max(0, start - passed), stop - passed, math.min(turn, TURN_MAX) }
      end
    end
  end
  return b.turns
end

-- Whether time behind the last slot was freed before. Turns are in order, so that the end of the last one says it.
local function freed_behind(b)
  local at, last = string.match(b.turns_text, '^(%d+);.*,(%d+),%d+$')
  last = at and last - drained_in(b, b.at - at) or 0
  if last <= 0 then
    b.turns = {} -- all have passed
  end
  return last > b.debt
end

M.load_absent = true

function M.load(b, text)
  local plain, level, at, parts, y, since, free, turns
  if text then
    plain, level, at, parts, y, since, free, turns = string.match(text, STATE)
  end
  if text or leased then
    local problem = load_level(b, plain or text)
    if problem then
      return problem
    end
  end
  y, since = (y or 0) + 0, (since or 0) + 0
  if not sound(y + since, 1) then
    return CORRUPT
  end
  local ahead, plainly = b.at > now, plain and not leased_out(b) and not b.shifted
  b.free, b.later, b.named = {}, {}, not ahead and not leased_out(b)
  local same = plainly and b.seen == b.generation and y == b.y and parts + 0 == b.x
    and (passes_bursts or level + 0 <= b.limit * b.x)
  b.intact = same and not ahead
  if same and not read_free(ahead and b.later or b.free, free, drained_in(b, b.at - at)) then
    return CORRUPT
  end
  if b.intact then
    b.since, b.turns, b.turns_text = since, nil, turns
  else
    b.since, b.turns = math.max(y > 0 and since + 1 or since, b.at, 1), {}
  end
  if b.shifted and string.find(b.shifted, '^b%d+:%d+:%d+:%d+$') then
    b.shifted = string.format(FORMAT, b.shifted, 0, b.since, '', '')
  end
end

local function listed(list, format)
  local texts = {}
  for i, of in ipairs(list) do
    texts[i] = string.format(format, unpack(of))
  end
  return table.concat(texts, ';')
end

function M.encode(b)
  local text = encode_level(b)
  if leased_out(b) then
    return text
  end
  local turns = b.turns_text
  if b.turns then
    turns = #b.turns > 0 and string.format(WHOLE, b.at) .. ';' .. listed(b.turns, TRIPLE) or ''
  end
  local free = #b.free > 0 and listed(b.free, PAIR) or ''
  return string.format(FORMAT, text, b.named and b.y or 0, b.since, free, turns)
end

-- Called when the limit's numbers or its level changed: freed time is lost, and earlier names free
-- nothing.
function M.forget(b)
  b.later = {}
  if b.intact then
    b.since, b.free, b.turns, b.intact = math.max(b.since + 1, b.at), {}, {}, false
  end
end

-- The largest cost that fits: behind all others, or into freed time, and is not held too long there.
function M.room(b)
  local most = room_at(b, b.debt)
  for _, span in ipairs(b.free) do
    most = math.max(most, math.min(room_at(b, span[1]), math.floor((span[2] - span[1]) / b.x)))
  end
  return most
end

-- The index of the earliest freed time that holds a cost whole and not too long.
local function holding(b, cost)
  for i, span in ipairs(b.free) do
    if span[2] - span[1] >= cost * b.x and held_ms(b, span[1], cost) <= b.z then
      return i
    end
  end
end

function M.delay_ms(b, cost)
  local i = holding(b, cost)
  return held_ms(b, i and b.free[i][1] or b.debt, cost)
end

-- Charges debits; the state will then be stored.
function M.charge(b, units)
  if units > 0 then
    b.later = {}
  end
  if not passes_bursts then
    return charge_behind(b, units)
  end
  -- Not at most the capacity, or debits would vanish while anything is held.
  local before = b.debt
  b.debt = math.max(before, math.min(before + math.min(units * b.x, 2 ^ 51), b.limit * b.x + b.z * b.y))
  return b.debt > before
end

function M.wait_ms(b, cost)
  local wait = wait_behind(b, cost)
  for _, span in ipairs(#b.later > 0 and b.later or b.free) do
    local soon = math.max(0, held_ms(b, span[1], cost) - b.z)
    if span[2] - math.max(span[1], soon * b.y) >= cost * b.x then
      wait = math.min(wait, b.at - now + soon)
    end
  end
  return wait
end

-- Adds a cost that fits; returns the name of its slot: start in ms and the parts beyond, since, turn.
-- All are 0 if it has no name.
function M.take(b, cost)
  local i, start = holding(b, cost), b.debt
  if i then
    local span = b.free[i]
    start, span[1] = span[1], span[1] + cost * b.x
    if span[1] >= span[2] then
      table.remove(b.free, i)
    end
  end
  local turn, stop = 0, start + cost * b.x
  for _, of in ipairs((b.turns or i or freed_behind(b)) and turns_of(b) or {}) do
    if of[1] < stop and start < of[2] then
      turn = math.max(turn, of[3] + 1)
    end
  end
  if not i then
    b.later, b.debt = {}, stop -- not `charge`, which stops at the capacity: it fits behind the last slot
  end
  if not b.named then
    return 0, 0, 0, 0
  end
  return b.at + math.floor(start / b.y), start % b.y, b.since, turn
end

-- The part of a slot that has not passed, if any.
local function span_of(b, start_ms, parts, units)
  if units > b.limit or parts >= b.y then
    return
  end
  local start, length = 0, units * b.x
  if start_ms >= b.at then
    if start_ms - b.at > math.floor(math.max(b.limit * b.x, b.debt) / b.y) then
      return
    end
    start = (start_ms - b.at) * b.y + parts
  else
    length = length + parts - drained_in(b, b.at - start_ms)
  end
  if length > 0 then
    return start, start + length
  end
end

-- Records that a name of this turn freed some time.
local function record_turn(b, start, stop, turn)
  local turns, last, new = {}, {}, { start, stop, turn }
  local function add(from, to, of)
    if from >= to then
      return
    elseif last[2] == from and last[3] == of then
      last[2] = to
    else
      last = { from, to, of }
      turns[#turns + 1] = last
    end
  end
  for _, of in ipairs(turns_of(b)) do
    local apart = of[2] <= start or not new and of[1] >= stop
    if apart and of[1] < of[2] and (last[2] ~= of[1] or last[3] ~= of[3]) then
      -- Nearly all of 256: a table for each, at each of 64 frees, took most of 15 ms.
      last = of
      turns[#turns + 1] = of
    else
      add(of[1], math.min(of[2], start), of[3])
      if new and of[2] > start then
        add(start, stop, turn)
        new = nil
      end
      add(math.max(of[1], stop), of[2], of[3])
    end
  end
  if new then
    add(start, stop, turn)
  end
  while #turns > TURNS_MAX do
    local first = table.remove(turns, 1)
    turns[1][1], turns[1][3] = first[1], math.max(first[3], turns[1][3])
  end
  b.turns = turns
end

-- Adds freed time, joined with spans it touches.
local function add_free(b, start, stop)
  local free = {}
  for _, span in ipairs(b.free) do
    if span[2] < start then
      free[#free + 1] = span
    elseif span[1] <= stop then
      start, stop = math.min(start, span[1]), math.max(stop, span[2])
    end
  end
  free[#free + 1] = { start, stop }
  for _, span in ipairs(b.free) do
    if span[1] > stop then
      free[#free + 1] = span
    end
  end
  if free[#free][2] >= b.debt then
    b.debt = table.remove(free)[1]
  end
  for i = FREE_MAX + 1, #free do
    free[i] = nil
  end
  b.free = free
end

-- Frees slots, each named by 4 numbers and followed by its units; returns whether any was freed. A slot
-- whose start has passed frees nothing, because its request may have started; with `denied` it did not,
-- and the rest of its time is freed.
function M.free(b, slots, denied)
  local any = false
  for i = 1, #slots, 5 do
    local since, turn = slots[i + 2], slots[i + 3]
    local start, stop = span_of(b, slots[i], slots[i + 1], slots[i + 4])
    local free = start and (start > lead(b, slots[i + 4]) or denied) and b.named and since == b.since
      and turn < TURN_MAX and stop <= b.debt
    if free then
      for _, of in ipairs(turns_of(b)) do
        free = free and not (of[3] >= turn and of[1] < stop and start < of[2])
      end
    end
    if free then
      record_turn(b, start, stop, turn)
      add_free(b, start, stop)
      any = true
    end
  end
  return any
end

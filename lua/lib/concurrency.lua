-- Requests in flight. Twin of crates/algorithms/src/concurrency.rs.
--
-- State: a sorted set of slots, "<stamp>:<secret>:<ttl, ms>", whose scores are their expiries in ms; and
-- two marks, whose scores are below 0: 'g', -1 - generation, and 't', -1 - the time of the latest write. No
-- expiry is further ahead of 't' than its slot's ttl, so that only a call with an earlier clock reads all. Once
-- a slot of an adaptive limit was freed, its mark has the place of 't', since each member that a free reads
-- and writes costs: 'a' and its state, in 54 bytes, fewer than those from which Redis stores a small set as a table.
-- (An earlier version kept 't' beside a mark with the score -1.)
--
-- s: limit, x (ttl of new slots, ms), y and z (stamp and secret of the request's id), used (slots that have
--    not expired), held (whether the request has one), list (after a step back of the clock: all slots, as
--    { expiry, name }, in the order of the set), cut (those of them whose expiry was cut), low, high (bits of
--    the slots to renew that are gone), open (how many slots there may be), found (the mark of an adaptive limit),
--    both (whether there is a 't' beside it), lives (whether it need not be kept for longer); of an
--    adaptive limit also where its rule is in ARGV (adaptive) and the limit in thousandths of a slot (milli)

local HELD_MAX, MISSING_BITS = 200000, 50
local NAME = WHOLE .. ':' .. WHOLE .. ':' .. WHOLE
local FREE, RENEW, ENTER, IN_TIME, UNDO = 1, 2, 3, 4, 7 -- after IN_TIME: late, slow
local LINGER = 3600000 -- for how long an adaptive limit is kept without a slot in use, ms

-- The mark of an adaptive limit: 'a'; the limit (thousandths of a slot); the latency (ms) and the share (per mille)
-- that the counts belong to; the start of the window (ms), its answers, the late and slow ones of them, the
-- slow ones, the most slots in use; the service's own late and own slow (per mille); and of the latest change the
-- time (ms), the limit before it, and the late and slow of the window that it ended (per mille).
local MARK, MARK_SIZE, START, MOVED = '<I1I4I4I2dI4I4I4I4I2I2dI4I2I2', 55, 12, 40

-- The numbers of a mark, if there is one; nothing of a damaged one.
local function read_mark(text)
  for _, at in ipairs(text and { START, MOVED } or {}) do
    local time = struct.unpack('<d', text, at)
    if time < 0 or time >= 2 ^ 53 or time % 1 ~= 0 then
      return
    end
  end
  if text then
    return struct.unpack(MARK, text)
  end
end

-- Sets the limit by the mark that was found.
local function set_open(s)
  if s.found then
    local found, min, max = struct.unpack('<I4', s.found, 2), ARGV[s.adaptive + 1] * 1000, s.limit * 1000
    found = found < min and min or found > max and max or found
    s.milli, s.open = found, (found - found % 1000) / 1000
  end
end

local function above_now()
  return string.format('(' .. WHOLE, now)
end

-- The longest ttl of a slot, ms.
local TTL_MAX = 86400000

-- A slot's expiry by its score; a damaged one is at most the longest ttl from now.
local function expiry_by(score)
  return math.min(math.ceil(score + 0), now + TTL_MAX)
end

-- A slot's ttl by its name; 0 if that is damaged.
local function ttl_by(name)
  local ttl = string.match(name, '^%d+:%d+:(%d+)$')
  return ttl and math.min(ttl + 0, TTL_MAX) or 0
end

-- The expiry of a slot that has not expired.
local function expiry_of(s, name)
  local score = redis.call('ZSCORE', s.key, name)
  local expiry = score and expiry_by(score)
  return expiry and expiry > now and expiry or nil
end

-- After a step back of the clock, cuts the expiries to the slots' ttls.
local function find_cut(s)
  s.list, s.cut = {}, {}
  local live = redis.call('ZRANGEBYSCORE', s.key, above_now(), '+inf', 'WITHSCORES')
  for i = 1, #live, 2 do
    local latest = now + ttl_by(live[i])
    local slot = { math.min(expiry_by(live[i + 1]), latest), live[i] }
    s.list[#s.list + 1] = slot
    if live[i + 1] + 0 > latest then
      s.cut[#s.cut + 1] = slot
    end
  end
  if #s.cut == 0 then
    s.list, s.cut = nil, nil
    return
  end
  s.shifted = true
  table.sort(s.list, function(a, b)
    return a[1] < b[1] or a[1] == b[1] and a[2] < b[2]
  end)
end

local function load(s)
  -- Here and below no field is set to nil that a table may lack: it would grow by it.
  s.used, s.held, s.low, s.high, s.marked, s.open = 0, false, 0, 0, false, s.limit
  local rule = s.adaptive
  if rule then
    s.milli = ARGV[rule] * 1000
    s.open = s.milli / 1000
  end
  local marks = held(redis.pcall('ZRANGEBYSCORE', s.key, '-inf', '(0', 'WITHSCORES'))
  if marks.err then
    s.foreign = true
    return foreign(s)
  end
  local generation, at
  for i = 1, #marks, 2 do
    local name = marks[i]
    if name == 'g' then
      generation = -1 - marks[i + 1]
    elseif name == 't' or #name == MARK_SIZE then
      at = at or -1 - marks[i + 1] -- of two the later
      if name ~= 't' then
        s.found = name
        if #marks > 4 then
          s.both = true
        end
      end
    end
  end
  if not generation or not at or not sound(generation + at, 1) or (generation + at) % 1 > 0 then
    return redis.call('ZCARD', s.key) > 0 and CORRUPT or nil
  end
  s.seen = generation
  if rule and not s.freed_slots then -- else when they are freed
    set_open(s)
  end
  if at > now then
    find_cut(s)
  end
  s.used = redis.call('ZCOUNT', s.key, above_now(), '+inf')
  s.held = s.used > 0 and expiry_of(s, string.format(NAME, s.y, s.z, s.x)) ~= nil
end

-- The nth expiry, from 1; from the end, if negative.
local function expiry(s, nth)
  if s.list then
    local slot = s.list[nth < 0 and #s.list + 1 + nth or nth]
    return slot and slot[1]
  end
  -- Slots that live come last: by rank, since servers walk to the offset of a range by score.
  local at = nth < 0 and nth or nth - 1 - s.used
  local rank = string.format(WHOLE, at)
  local found = at < 0 and redis.call('ZRANGE', s.key, rank, rank, 'WITHSCORES')[2]
  return found and expiry_by(found)
end

local function room(s)
  local left = s.open - s.used
  return s.held and math.max(1, left) or left
end

-- Marks the state as written now, and adds slots, each by its expiry and its name.
local function mark(s, ...)
  if s.foreign then
    -- Another algorithm's state. A server without memory refuses only the first write of a call.
    redis.call('SET', s.key, '')
    redis.call('DEL', s.key)
    s.foreign, s.seen = nil, 0
  end
  if s.seen > 0 and s.seen == s.generation then
    redis.call('ZADD', s.key, string.format(WHOLE, -1 - now), s.found or 't', ...)
  else
    redis.call('ZADD', s.key, string.format(WHOLE, -1 - now), s.found or 't', -1 - s.generation, 'g', ...)
  end
  s.marked = true
  if s.cut then
    for _, slot in ipairs(s.cut) do
      redis.call('ZADD', s.key, slot[1], slot[2])
    end
    s.cut = nil
  end
  if s.list then
    s.list = nil
  end
end

local function wait_ms(s, cost)
  return (expiry(s, math.max(1, s.used + cost - s.open)) or now) - now
end

local function reset_after_ms(s)
  return s.used > 0 and expiry(s, -1) - now or 0
end

-- Gives the request a slot; returns its name, 4 numbers.
local function take(s)
  mark(s, string.format(WHOLE, now + s.x), string.format(NAME, s.y, s.z, s.x))
  s.used = s.held and s.used or s.used + 1
  s.held = false
  if s.lives then
    s.lives = nil
  end
  return s.y, s.z, s.x, 0
end

-- Slots per command, far below the limit of unpack().
local TOGETHER = 200

-- Writes the changes of slots, and the mark of an adaptive limit that follows from them.
local function write(s, became, next_mark)
  local added, freed = {}, nil
  -- A set with such a mark already lives that long after its last slot: only one that is added prolongs that.
  s.lives = s.found
  if next_mark and next_mark ~= s.found then
    freed = { s.found or 't', s.both and 't' or nil }
    s.found = next_mark
  else
    freed = {}
  end
  for name, expiry in pairs(became) do
    if expiry then
      s.lives = nil
      added[#added + 1], added[#added + 2] = expiry, name
    else
      freed[#freed + 1] = name
    end
  end
  mark(s, unpack(added, 1, math.min(#added, 2 * TOGETHER)))
  for i = 2 * TOGETHER + 1, #added, 2 * TOGETHER do
    redis.call('ZADD', s.key, unpack(added, i, math.min(#added, i + 2 * TOGETHER - 1)))
  end
  for i = 1, #freed, TOGETHER do
    redis.call('ZREM', s.key, unpack(freed, i, math.min(#freed, i + TOGETHER - 1)))
  end
end

-- Frees, renews or enters slots, each a name of 4 numbers followed by the action; returns whether
-- anything changed.
local function free(s, slots)
  local changed, became = false, {} -- the new expiry of each changed slot, false if freed
  local paces -- of an adaptive limit: of each slot that is freed how many were in use, and what its request says
  local function holds(name)
    local present = became[name]
    if present == nil then
      present = s.used > 0 and not s.foreign and expiry_of(s, name) -- the first write deletes a foreign state
    end
    return present
  end
  for i = 1, #slots, 5 do
    local ttl, act, position = slots[i + 2], slots[i + 4], (i - 1) / 5
    local name = string.format(NAME, slots[i], slots[i + 1], ttl)
    local present = holds(name)
    if not present and ttl > s.x then
      -- A name may claim any ttl, so a slot that is entered has the limit's own; its holder goes on to use
      -- the name that it has.
      ttl = s.x
      name = string.format(NAME, slots[i], slots[i + 1], ttl)
      present = holds(name)
    end
    if (act == FREE or act >= IN_TIME) and present then
      if s.adaptive and act < UNDO then
        if paces then
          paces[#paces + 1] = s.used
          paces[#paces + 1] = act - ENTER
        else
          paces = { s.used, act - ENTER }
        end
      end
      became[name], s.used, changed = false, s.used - 1, true
    elseif act == RENEW and not present then
      if position < MISSING_BITS then
        s.low = s.low + 2 ^ position
      elseif position < 2 * MISSING_BITS then
        s.high = s.high + 2 ^ (position - MISSING_BITS)
      end
    elseif act == RENEW or act == ENTER and (present or s.used < HELD_MAX) then
      became[name], s.used, changed = now + ttl, present and s.used or s.used + 1, true
    end
  end
  local next_mark
  if paces then
    -- include: lib/adaptive.lua
    next_mark = adapt(s, paces)
  end
  if next_mark then
    s.open = (s.milli - s.milli % 1000) / 1000
  elseif s.adaptive and s.freed_slots then
    set_open(s)
  end
  if changed then
    write(s, became, next_mark)
    local own = became[string.format(NAME, s.y, s.z, s.x)]
    if own ~= nil then
      s.held = own ~= false
    end
  end
  return changed
end

-- Frees slots of requests without ids (the low 20 bits of their stamps are 0): those that expire first.
-- save() removes them.
local function credit(s, units)
  local any = s.used > 0
  s.removed = {}
  local function remove(name)
    if units == 0 or (string.match(name, '^(%d+):%d+:%d+$') or 1) % 2 ^ 20 > 0 then
      return false
    end
    s.removed[#s.removed + 1] = name
    s.used, units = s.used - 1, units - 1
    return true
  end
  -- Mostly all slots are such: then those that stay are the last ones, and need not be read.
  while units > 0 and s.used > 0 and not s.list do
    local last = math.min(units, s.used, TOGETHER) - s.used - 1
    for _, name in ipairs(redis.call('ZRANGE', s.key, -s.used, last)) do
      if not remove(name) then
        s.list = {}
        break
      end
    end
    local live = s.list and redis.call('ZRANGE', s.key, -s.used, -1, 'WITHSCORES') or {}
    for i = 1, #live, 2 do
      s.list[#s.list + 1] = { expiry_by(live[i + 1]), live[i] }
    end
  end
  if s.list then
    local left = {}
    for _, slot in ipairs(s.list) do
      if not remove(slot[2]) then
        left[#left + 1] = slot
      end
    end
    s.list = left
  end
  return any
end

local function save(s, ttl)
  if not s.marked then
    mark(s)
  end
  if s.removed then
    for i = 1, #s.removed, TOGETHER do
      redis.call('ZREM', s.key, unpack(s.removed, i, math.min(#s.removed, i + TOGETHER - 1)))
    end
    s.removed = nil
  end
  redis.call('ZREMRANGEBYSCORE', s.key, '0', string.format(WHOLE, now))
  if not s.lives then
    redis.call('PEXPIRE', s.key, string.format(WHOLE, (s.adaptive or s.found) and ttl + LINGER or ttl))
  end
end

local function save_shifted(s, ttl)
  s.generation = s.seen
  save(s, ttl)
end

return {
  load = load,
  room = room,
  charge = function()
    return false
  end,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
  delay_ms = function()
    return 0
  end,
  take = take,
  free = free,
  credit = credit,
  missing = function(s)
    return s.low, s.high
  end,
  read_mark = read_mark,
  save = save,
  save_shifted = save_shifted,
}

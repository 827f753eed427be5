-- Units reserved for requests whose responses state the cost.
-- Twin of crates/algorithms/src/reservations.rs, which has the argument.
--
-- State, beside the bucket's: a hash. Field "h": "<generation>:<kind>:<x>:<y>:<count>:<void>".
-- Field "<(number - 1) % 1000>", for each of the latest: "<number>:<secret>:<units>:<ms>:<1 if settled, else 0>".
-- Of a bucket, as doubles: field "s", a number and a sum for each chunk of fifty reservations that has a sum;
-- field "c<chunk % 21>", the parts of each reservation of a chunk.
--
-- The least debt since a reservation is the sum of its own parts and those of all older ones. Debt that drains
-- takes the parts of the youngest; units that are given back take those of their reservation, then of the next
-- older. The sums are there so that an operation reads one chunk at most: in the others, parts are taken off the
-- sum, and off their youngest reservations when they are next read.
--
-- c (l.costs): key, secret (-1: nothing is reserved), settle (number, secret, reserved, units of each), and
--    once read count, void, sums (chunk, sum, chunk, sum, oldest first), owed (all of them), records (those that
--    changed, by field), chunks (lists of parts that were read, by chunk)

local RECORDS, SETTLE_WITHIN_MS = 1000, 600000
local CHUNK, CHUNK_FIELDS = 50, 21 -- the records lie in so many chunks at most
local DOUBLES = '<' .. string.rep('d', CHUNK)
local HEAD = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$'
local RECORD = '^(%d+):(%d+):(%d+):(%d+):([01])$'

-- With its kind and x, the unit in which a limit counts.
local function second_unit(l)
  return (l.kind == 7 or l.kind == 8) and l.y or 0
end

-- Whether a list holds whole numbers only, as far as they are exact.
local function are_whole(list)
  for i = 1, #list do
    local number = list[i]
    if not (number >= 0 and number < 2 ^ 53 and number % 1 == 0) then
      return false
    end
  end
  return true
end

-- The number, secret, units, time and state of a record; nil if there is none, or it is damaged.
local function record_of(text)
  local number, secret, units, at, settled = string.match(text or '', RECORD)
  if number and sound(number + units + at, 1) and secret + 0 < 2 ^ 53 then
    return number + 0, secret + 0, units + 0, at + 0, settled
  end
end

-- Takes parts off the sums, from that at a position down.
local function take_sums(c, position, parts)
  local sums = c.sums
  c.owed = c.owed - parts
  for i = position, 2, -2 do
    local taken = math.min(parts, sums[i])
    sums[i], parts = sums[i] - taken, parts - taken
    if sums[i] == 0 then
      table.remove(sums, i)
      table.remove(sums, i - 1)
    end
    if parts == 0 then
      return
    end
  end
end

-- The parts of the reservations of the chunk whose sum is at a position: what was taken off the sum since is taken
-- off the youngest.
local function parts_of(c, position)
  local chunk, beyond = c.sums[position - 1], -c.sums[position]
  local list = c.chunks[chunk]
  if not list then
    local text = call('HGET', c.key, string.format('c%.0f', chunk % CHUNK_FIELDS))
    list = text and #text == 8 * CHUNK and { struct.unpack(DOUBLES, text) } or {}
    list[CHUNK + 1] = nil
    list = are_whole(list) and list or {}
    c.chunks[chunk] = list
  end
  for i = 1, CHUNK do
    list[i] = list[i] or 0
    beyond = beyond + list[i]
  end
  for i = CHUNK, 1, -1 do
    if beyond <= 0 then
      break
    end
    local taken = math.min(beyond, list[i])
    list[i], beyond = list[i] - taken, beyond - taken
  end
  return list
end

local function read_reservations(l, key)
  local c = l.costs
  c.key, c.count, c.void, c.sums, c.owed, c.records, c.chunks = key, 0, 0, {}, 0, {}, {}
  local found = held(redis.pcall('HMGET', key, 'h', 's'))
  if found.err then
    call('DEL', key) -- of another type: not ours
  end
  local generation, kind, x, y, count, void = string.match(found[1] or '', HEAD)
  if generation and sound(generation + count + void, 1) then
    c.count, c.void = count + 0, void + 0
    local other = l.seen ~= 0 and l.seen ~= generation + 0
    if kind + 0 ~= l.kind or x + 0 ~= l.x or y + 0 ~= second_unit(l) or other or l.cut or l.shifted then
      c.void = c.count
    elseif l.kind <= 3 and found[2] and #found[2] % 16 == 0 then
      local doubles = #found[2] / 8
      c.sums = { struct.unpack('<' .. string.rep('d', doubles), found[2]) }
      c.sums[doubles + 1] = nil -- the position after them
      if not are_whole(c.sums) then
        c.sums, doubles = {}, 0
      end
      for i = 2, doubles, 2 do
        c.owed = c.owed + c.sums[i]
      end
    end
  end
  if l.kind <= 3 and c.owed > l.debt then
    take_sums(c, #c.sums, c.owed - l.debt)
  end
end

-- Removes units from the count of the time `at`, as far as it has them; returns how many.
local function uncount(w, units, at)
  local function less(count, out)
    return math.max(count - units, math.min(count, out or 0))
  end
  if w.kind <= 5 or w.kind == 11 then
    local before = w.used
    w.used = at >= w.at and less(w.used, w.out) or w.used
    return before - w.used
  elseif w.kind == 9 then
    local before = w.current + w.previous
    if at >= w.at then
      w.current = less(w.current, w.out)
    elseif at + w.x >= w.at then
      w.previous = less(w.previous, w.out_before)
    end
    return before - w.current - w.previous
  elseif w.kind == 7 or w.kind == 8 then
    if not w.live then
      w.algorithm.list(w)
    end
    local before, index = w.used, math.floor(at / w.width)
    local count = w.algorithm.count_of(w, index)
    if count then
      local left = less(count[2], w.algorithm.out_of(w, index))
      w.used, count[2] = w.used - count[2] + left, left
    end
    return before - w.used
  end
  return 0
end

-- Gives back what is left of a reservation, as far as it still counts; returns how many whole units, and
-- whether it was anything.
local function give_back(l, number, units, at)
  if l.kind > 3 then
    local back = at <= now and uncount(l, units, at) or 0
    return back, back > 0
  end
  local c, chunk, nth = l.costs, math.ceil(number / CHUNK), (number - 1) % CHUNK + 1
  local below, own, least = 0, nil, 0 -- the positions of older sums and of its own, and the least debt
  for i = 2, #c.sums, 2 do
    if c.sums[i - 1] < chunk then
      below, least = i, least + c.sums[i]
    elseif c.sums[i - 1] == chunk then
      own = i
    end
  end
  local list = own and parts_of(c, own)
  for i = 1, list and nth or 0 do
    least = least + list[i]
  end
  local parts = math.min(units * l.x, least)
  local leased = l.algorithm.leased and l.algorithm.leased(l) or 0
  l.debt = math.max(l.debt - parts, math.min(leased * l.x, 2 ^ 51))
  local rest = parts
  for i = list and nth or 0, 1, -1 do
    local taken = math.min(rest, list[i])
    list[i], rest = list[i] - taken, rest - taken
  end
  if own then
    c.sums[own], c.owed = c.sums[own] - (parts - rest), c.owed - (parts - rest)
    if c.sums[own] == 0 then
      table.remove(c.sums, own)
      table.remove(c.sums, own - 1)
    end
  end
  take_sums(c, below, rest)
  return math.floor(parts / l.x), parts > 0
end

-- Replaces reservations by true costs; returns whether the usage changed. If only records did, which c.settled
-- says, the state is not written: a settlement opens no window and forgets no entries.
local function settle_costs(l)
  local c, changed = l.costs, false
  c.given_back, c.excess, c.settled = 0, 0, false
  for i = 1, #c.settle, 4 do
    local number, secret, reserved, units = c.settle[i], c.settle[i + 1], c.settle[i + 2], c.settle[i + 3]
    local field = string.format('%.0f', (number - 1) % RECORDS)
    local text, excess = c.records[field] or call('HGET', c.key, field), math.max(0, units - reserved)
    local known, named, held_units, at, settled = record_of(text)
    if known == number and named == secret then
      excess = 0
      if settled == '0' then
        c.settled = true
        c.records[field] = string.sub(text, 1, -2) .. '1'
        if units >= held_units then
          excess = units - held_units
        -- One that is void or too old gives nothing back, but its excess is charged once.
        elseif number > c.void and now < at + SETTLE_WITHIN_MS then
          local back, lowered = give_back(l, number, held_units - units, at)
          c.given_back, changed = c.given_back + back, changed or lowered
        end
      end
    end
    c.excess = c.excess + excess
  end
  if c.excess > 0 then
    local add, before = l.algorithm.overcharge or l.algorithm.charge, l.debt
    changed = add(l, c.excess) or changed
    if l.kind <= 3 then -- a bucket owes only so much: the rest is not charged
      c.excess = math.floor((l.debt - before) / l.x)
    end
  end
  return changed
end

-- Records a reservation that was just charged; returns its number.
local function reserve(l, units)
  local c = l.costs
  c.count = c.count + 1
  local sums, parts = c.sums, l.kind <= 3 and l.debt - c.owed or 0
  if parts > 0 then
    local chunk = math.ceil(c.count / CHUNK)
    if sums[#sums - 1] ~= chunk then
      sums[#sums + 1], sums[#sums + 2], c.chunks[chunk] = chunk, 0, {}
    end
    local list, nth = parts_of(c, #sums), (c.count - 1) % CHUNK + 1
    list[nth], sums[#sums], c.owed = parts, sums[#sums] + parts, c.owed + parts
  end
  -- Of chunks without records only the sum counts, and that for all of them.
  while sums[3] and sums[3] * CHUNK <= c.count - RECORDS do
    sums[4] = sums[2] + sums[4]
    table.remove(sums, 1)
    table.remove(sums, 1)
  end
  c.records[string.format('%.0f', (c.count - 1) % RECORDS)] =
    string.format('%.0f:%.0f:%.0f:%.0f:0', c.count, c.secret, units, now)
  return c.count
end

-- Stores the reservations with the bucket's state, which l.generation wrote if `used`.
local function store_reservations(l, used)
  local c = l.costs
  if c.count == 0 then
    return
  end
  local generation = used and l.generation or l.seen
  local fields = { 'h',
    string.format('%.0f:%.0f:%.0f:%.0f:%.0f:%.0f', generation, l.kind, l.x, second_unit(l), c.count, c.void) }
  if l.kind <= 3 then
    fields[3], fields[4] = 's', ''
    if c.sums[1] then
      fields[4] = struct.pack('<' .. string.rep('d', #c.sums), unpack(c.sums))
    end
  end
  for i = 1, #c.sums, 2 do
    local list = c.chunks[c.sums[i]]
    if list then
      fields[#fields + 1] = string.format('c%.0f', c.sums[i] % CHUNK_FIELDS)
      fields[#fields + 1] = struct.pack(DOUBLES, unpack(list, 1, CHUNK))
    end
  end
  for field, text in pairs(c.records) do
    fields[#fields + 1], fields[#fields + 2] = field, text
  end
  call('HSET', c.key, unpack(fields))
  call('PEXPIRE', c.key, injected and TTL_INJECTED_MS or SETTLE_WITHIN_MS + TTL_MARGIN_MS)
end

-- Units that are reserved and not settled yet.
local function open_units(l)
  local open = 0
  for _, text in ipairs(call('HGETALL', l.costs.key)) do -- the names don't match
    local number, _, units, at, settled = record_of(text)
    if settled == '0' and number > l.costs.void and now < at + SETTLE_WITHIN_MS then
      open = open + units
    end
  end
  return open
end

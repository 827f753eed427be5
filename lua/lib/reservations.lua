-- Units reserved for requests whose responses state the cost.
-- Twin of crates/algorithms/src/reservations.rs, which has the argument.
--
-- State, beside the bucket's: a hash. Field "h":
-- "<generation>:<kind>:<x>:<y>:<count>:<void>", then ";<number>:<least debt since, parts>" for some.
-- Field "<(number - 1) % 1000>", for each of the latest: "<number>:<secret>:<units>:<ms>:<1 if settled, else 0>".
--
-- c (l.costs): key, secret (-1: nothing is reserved), settle (number, secret, reserved, units of each), and
--    once read count, void, leasts ({ number, debt }), records (those that changed, by field)

local RECORDS, SETTLE_WITHIN_MS, LEASTS_MAX = 1000, 600000, 16
local HEAD = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)(.*)$'
local RECORD = '^(%d+):(%d+):(%d+):(%d+):([01])$'

-- With its kind and x, the unit in which a limit counts.
local function second_unit(l)
  return (l.kind == 7 or l.kind == 8) and l.y or 0
end

-- Lowers the stored least debts to the current debt.
local function lower_leasts(c, debt)
  local kept = 0
  while c.leasts[kept + 1] and c.leasts[kept + 1][2] < debt do
    kept = kept + 1
  end
  if c.leasts[kept + 1] then
    c.leasts[kept + 1][2] = debt
  end
  for i = #c.leasts, kept + 2, -1 do
    c.leasts[i] = nil
  end
end

local function read_reservations(l, key)
  local c = l.costs
  c.key, c.count, c.void, c.leasts, c.records = key, 0, 0, {}, {}
  local text = held(redis.pcall('HGET', key, 'h'))
  if type(text) == 'table' then
    call('DEL', key) -- of another type: not ours
  end
  local generation, kind, x, y, count, void, rest
  if type(text) == 'string' then
    generation, kind, x, y, count, void, rest = string.match(text, HEAD)
  end
  if generation then
    c.count, c.void = count + 0, void + 0
    local other = l.seen ~= 0 and l.seen ~= generation + 0
    if kind + 0 ~= l.kind or x + 0 ~= l.x or y + 0 ~= second_unit(l) or other or l.cut or l.shifted then
      c.void = c.count
    else
      for number, debt in string.gmatch(rest, ';(%d+):(%d+)') do
        c.leasts[#c.leasts + 1] = { number + 0, debt + 0 }
      end
    end
  end
  if l.kind <= 3 then
    lower_leasts(c, l.debt)
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
    local before = w.used
    for _, count in ipairs(w.live) do
      if count[1] == math.floor(at / w.width) then
        local left = less(count[2], w.algorithm.out_of(w, count[1]))
        w.used, count[2] = w.used - count[2] + left, left
      end
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
  local leasts, known = l.costs.leasts, nil
  for i = 1, #leasts do
    known = leasts[i][1] <= number and leasts[i] or known
  end
  if not known then
    return 0, false
  end
  local least = known[2]
  local parts = math.min(units * l.x, least)
  local leased = l.algorithm.leased and l.algorithm.leased(l) or 0
  l.debt = math.max(l.debt - parts, math.min(leased * l.x, 2 ^ 51))
  local kept = {}
  for i = 1, #leasts do
    local other = leasts[i]
    if other[1] > number then
      other[2] = other[2] - parts
    else
      other[2] = math.min(other[2], least - parts)
    end
    if #kept == 0 or kept[#kept][2] < other[2] then
      kept[#kept + 1] = other
    end
  end
  l.costs.leasts = kept
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
    local known, named, held_units, at, settled = string.match(text or '', RECORD)
    if known and known + 0 == number and named + 0 == secret then
      excess = 0
      if settled == '0' then
        c.settled, held_units, at = true, held_units + 0, at + 0
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
    local add = l.algorithm.overcharge or l.algorithm.charge
    changed = add(l, c.excess) or changed
  end
  return changed
end

-- Records a reservation that was just charged; returns its number.
local function reserve(l, units)
  local c = l.costs
  c.count = c.count + 1
  local leasts = c.leasts
  if l.kind <= 3 then
    leasts[#leasts + 1] = { c.count, l.debt }
    if #leasts > LEASTS_MAX then
      -- Drops the one least above the one before: its reservations get that much less back.
      local before, place, least = 0, 1, 2 ^ 53
      for i = 1, #leasts do
        if leasts[i][2] - before < least then
          place, least = i, leasts[i][2] - before
        end
        before = leasts[i][2]
      end
      table.remove(leasts, place)
    end
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
  local parts =
    { string.format('%.0f:%.0f:%.0f:%.0f:%.0f:%.0f', generation, l.kind, l.x, second_unit(l), c.count, c.void) }
  for i = 1, #c.leasts do
    parts[i + 1] = string.format(';%.0f:%.0f', c.leasts[i][1], c.leasts[i][2])
  end
  local fields = { 'h', table.concat(parts) }
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
    local number, _, units, at, settled = string.match(text, RECORD)
    if settled == '0' and number + 0 > l.costs.void and now < at + SETTLE_WITHIN_MS then
      open = open + units
    end
  end
  return open
end

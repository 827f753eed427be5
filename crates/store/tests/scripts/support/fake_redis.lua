-- As much of Redis as the scripts use, in memory. No key ever expires here.
-- call(name, ...) runs a command like redis.call: strings in, RESP2 types out.

local keys = {}
local allowed = nil
local time = { '1763000000', '0' }
local writes, calls = 0, 0

local WRONGTYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'

local function argument(value)
  if type(value) == 'number' then
    return string.format('%.17g', value)
  end
  assert(type(value) == 'string', 'Lua redis lib command arguments must be strings or integers')
  return value
end

local function integer(text)
  assert(string.find(text, '^%-?%d+$'), 'ERR value is not an integer or out of range: ' .. text)
  return tonumber(text)
end

-- The value at a key that was declared in KEYS, of a type or absent.
local function value(key, kind)
  assert(not allowed or allowed[key], 'undeclared key ' .. tostring(key))
  local entry = keys[key]
  if entry and kind and entry.kind ~= kind then
    error({ err = WRONGTYPE })
  end
  return entry
end

local function index(list, i)
  i = integer(i)
  return i < 0 and #list + i + 1 or i + 1
end

local commands = {}

function commands.TIME()
  return { time[1], time[2] }
end

function commands.GET(key)
  local entry = value(key, 'string')
  return entry and entry.text or false
end

function commands.SET(key, text, px, ttl)
  value(key)
  local kept = px == 'KEEPTTL' and keys[key] and keys[key].ttl
  assert(px == 'KEEPTTL' or (px == 'PX' and integer(ttl) > 0), 'ERR invalid expire time')
  keys[key] = { kind = 'string', text = text, ttl = kept or integer(ttl) }
  return { ok = 'OK' }
end

function commands.DEL(key)
  local had = value(key)
  keys[key] = nil
  return had and 1 or 0
end

function commands.PEXPIRE(key, ttl)
  local entry = value(key)
  assert(integer(ttl) > 0, 'ERR invalid expire time')
  if not entry then
    return 0
  end
  entry.ttl = integer(ttl)
  return 1
end

function commands.RPUSH(key, ...)
  local entry = value(key, 'list') or { kind = 'list', list = {} }
  keys[key] = entry
  for _, item in ipairs({ ... }) do
    entry.list[#entry.list + 1] = item
  end
  return #entry.list
end

function commands.LLEN(key)
  local entry = value(key, 'list')
  return entry and #entry.list or 0
end

function commands.LINDEX(key, i)
  local entry = value(key, 'list')
  return entry and entry.list[index(entry.list, i)] or false
end

function commands.LSET(key, i, text)
  local entry = assert(value(key, 'list'), 'ERR no such key')
  local at = index(entry.list, i)
  assert(entry.list[at], 'ERR index out of range')
  entry.list[at] = text
  return { ok = 'OK' }
end

function commands.LRANGE(key, first, last)
  local entry, found = value(key, 'list'), {}
  if entry then
    for i = index(entry.list, first), math.min(#entry.list, index(entry.list, last)) do
      found[#found + 1] = entry.list[i]
    end
  end
  return found
end

function commands.LTRIM(key, first, last)
  local kept = commands.LRANGE(key, first, last)
  if value(key, 'list') then
    keys[key].list = kept
    if #kept == 0 then
      keys[key] = nil
    end
  end
  return { ok = 'OK' }
end

function commands.HGETALL(key)
  local entry, flat = value(key, 'hash'), {}
  for field, text in pairs(entry and entry.hash or {}) do
    flat[#flat + 1] = field
    flat[#flat + 1] = text
  end
  return flat
end

function commands.HGET(key, field)
  local entry = value(key, 'hash')
  return entry and entry.hash[field] or false
end

function commands.HMGET(key, ...)
  local found = { ... }
  for i, field in ipairs(found) do
    found[i] = commands.HGET(key, field)
  end
  return found
end

function commands.HSET(key, ...)
  local entry = value(key, 'hash') or { kind = 'hash', hash = {} }
  keys[key] = entry
  local pairs_given = { ... }
  for i = 1, #pairs_given, 2 do
    entry.hash[pairs_given[i]] = pairs_given[i + 1]
  end
  return #pairs_given / 2
end

function commands.HDEL(key, ...)
  local entry = value(key, 'hash')
  for _, field in ipairs({ ... }) do
    if entry then
      entry.hash[field] = nil
    end
  end
  if entry and next(entry.hash) == nil then
    keys[key] = nil
  end
  return 1
end

-- The members and scores from `first` to `last`, in order.
local function ranged(key, first, last)
  local entry, found = value(key, 'zset'), {}
  local function bound(text)
    local open = string.sub(text, 1, 1) == '('
    text = open and string.sub(text, 2) or text
    return (string.gsub(text, 'inf$', '') ~= text and (text == '-inf' and -math.huge or math.huge)) or tonumber(text), open
  end
  local low, above = bound(first)
  local high, below = bound(last)
  for member, score in pairs(entry and entry.scores or {}) do
    if (above and score > low or not above and score >= low) and (below and score < high or not below and score <= high) then
      found[#found + 1] = { member, score }
    end
  end
  table.sort(found, function(a, b)
    return a[2] < b[2] or a[2] == b[2] and a[1] < b[1]
  end)
  return found
end

local function flat(found, with_scores, from, to)
  local list = {}
  for i = math.max(from, 1), math.min(to, #found) do
    list[#list + 1] = found[i][1]
    if with_scores then
      list[#list + 1] = string.format('%.17g', found[i][2])
    end
  end
  return list
end

function commands.ZADD(key, ...)
  local entry = value(key, 'zset') or { kind = 'zset', scores = {} }
  keys[key] = entry
  local given = { ... }
  for i = 1, #given, 2 do
    entry.scores[given[i + 1]] = assert(tonumber(given[i]), 'ERR value is not a valid float')
  end
  return #given / 2
end

function commands.ZSCORE(key, member)
  local entry = value(key, 'zset')
  local score = entry and entry.scores[member]
  return score and string.format('%.17g', score) or false
end

function commands.ZRANGEBYSCORE(key, first, last, ...)
  local found, options = ranged(key, first, last), { ... }
  local scores, from, to = false, 1, #found
  for i, option in ipairs(options) do
    if option == 'WITHSCORES' then
      scores = true
    elseif option == 'LIMIT' then
      from = integer(options[i + 1]) + 1
      to = from + integer(options[i + 2]) - 1
    end
  end
  return flat(found, scores, from, to)
end

function commands.ZRANGE(key, first, last, scores)
  local found = ranged(key, '-inf', '+inf')
  return flat(found, scores == 'WITHSCORES', index(found, first), index(found, last))
end

function commands.ZCOUNT(key, first, last)
  return #ranged(key, first, last)
end

local function without(key, members)
  local entry, removed = value(key, 'zset'), 0
  for _, member in ipairs(members) do
    if entry and entry.scores[member] then
      entry.scores[member], removed = nil, removed + 1
    end
  end
  if entry and next(entry.scores) == nil then
    keys[key] = nil
  end
  return removed
end

function commands.ZREM(key, ...)
  return without(key, { ... })
end

function commands.ZREMRANGEBYSCORE(key, first, last)
  return without(key, flat(ranged(key, first, last), false, 1, math.huge))
end

function commands.ZCARD(key)
  return #ranged(key, '-inf', '+inf')
end

local READS = { ZSCORE = true, ZRANGEBYSCORE = true, ZRANGE = true, ZCOUNT = true, ZCARD = true, TIME = true, GET = true, LLEN = true, LINDEX = true, LRANGE = true, HGETALL = true, HGET = true, HMGET = true }

local function call(name, ...)
  local command = assert(commands[name], 'ERR unknown command ' .. name)
  calls = calls + 1
  if not READS[name] then
    writes = writes + 1
  end
  local given = { ... }
  for i = 1, select('#', ...) do
    given[i] = argument(given[i])
  end
  return command(unpack(given))
end

redis = {
  call = function(...)
    local ok, result = pcall(call, ...)
    if not ok then
      error(type(result) == 'table' and result.err or result, 0)
    end
    return result
  end,
  pcall = function(...)
    local ok, result = pcall(call, ...)
    if not ok then
      return { err = type(result) == 'table' and result.err or result }
    end
    return result
  end,
}

-- Runs a loaded script; answers as Redis would, numbers cut to integers.
local function eval(script, KEYS_, ARGV_)
  allowed = {}
  for _, key in ipairs(KEYS_) do
    allowed[key] = true
  end
  local environment = setmetatable({ KEYS = KEYS_, ARGV = ARGV_ }, {
    __index = _G,
    __newindex = function(_, name)
      error('Script attempted to access nonexistent global variable ' .. tostring(name))
    end,
  })
  setfenv(script, environment)
  local reply = script()
  allowed = nil
  if type(reply) == 'string' then
    return reply
  end
  for i, number in ipairs(reply) do
    assert(type(number) == 'number', 'not a number at ' .. i)
    assert(number == math.floor(number), 'a fraction at ' .. i .. ' would be cut')
  end
  return reply
end

return {
  eval = eval,
  call = call,
  writes = function()
    return writes
  end,
  calls = function()
    return calls
  end,
  type_of = function(key)
    return keys[key] and keys[key].kind or 'none'
  end,
  ttl = function(key)
    return keys[key] and keys[key].ttl or -2
  end,
  set_time = function(seconds, micros)
    time = { seconds, micros }
  end,
}

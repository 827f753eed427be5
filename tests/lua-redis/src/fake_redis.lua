-- As much of Redis as the stores and the scripts use, in memory. Keys expire if `expire()` was called.
-- call(name, ...) runs a command like redis.call: strings in, RESP2 types out.

-- Data are small, and what is collected costs more than what is kept.
collectgarbage('setpause', 1000)

local keys = {}
local allowed = nil
local time, now_ms = { '1763000000', '0' }, 1763000000000
local writes, calls, ranged_items = 0, 0, 0
local expiring, refusal = false, nil

local WRONGTYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'

local function argument(value)
  if type(value) == 'number' then
    return string.format('%.17g', value)
  end
  assert(type(value) == 'string', 'Lua redis lib command arguments must be strings or integers')
  return value
end

local function integer(text)
  if not string.find(text, '^%-?%d+$') then
    error('ERR value is not an integer or out of range: ' .. text, 0)
  end
  return tonumber(text)
end

local function living(ttl)
  return expiring and now_ms + ttl or nil
end

-- The value at a key that was declared in KEYS, of a type or absent.
local function value(key, kind)
  if allowed and not allowed[key] then
    error('undeclared key ' .. tostring(key), 0)
  end
  local entry = keys[key]
  if expiring and entry and entry.expires and entry.expires <= now_ms then
    keys[key], entry = nil, nil
  end
  if entry and kind and entry.kind ~= kind then
    error(WRONGTYPE, 0)
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

function commands.SET(key, text, option, ttl)
  local entry = value(key)
  local lives = option == 'PX' and integer(ttl)
  assert(not option or option == 'KEEPTTL' or option == 'NX' or lives and lives > 0, 'ERR invalid expire time')
  if option == 'NX' and entry then
    return false
  end
  local made = { kind = 'string', text = text }
  if option == 'KEEPTTL' and entry then
    made.ttl, made.expires = entry.ttl, entry.expires
  elseif lives then
    made.ttl, made.expires = lives, living(lives)
  end
  keys[key] = made
  return { ok = 'OK' }
end

function commands.DEL(key)
  local had = value(key)
  keys[key] = nil
  return had and 1 or 0
end

function commands.PEXPIRE(key, ttl)
  local entry, lives = value(key), integer(ttl)
  assert(lives > 0, 'ERR invalid expire time')
  if not entry then
    return 0
  end
  entry.ttl, entry.expires = lives, living(lives)
  return 1
end

function commands.PERSIST(key)
  local entry = value(key)
  if not entry or not entry.ttl then
    return 0
  end
  entry.ttl, entry.expires = nil, nil
  return 1
end

function commands.PTTL(key)
  local entry = value(key)
  return not entry and -2 or entry.expires and entry.expires - now_ms or entry.ttl or -1
end

function commands.EXISTS(key)
  return value(key) and 1 or 0
end

function commands.UNLINK(...)
  local gone = 0
  for _, key in ipairs({ ... }) do
    gone = gone + commands.DEL(key)
  end
  return gone
end

function commands.RENAME(from, to)
  value(to)
  keys[to], keys[from] = assert(value(from), 'ERR no such key'), nil
  return { ok = 'OK' }
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

function commands.HLEN(key)
  return #commands.HGETALL(key) / 2
end

-- All at once: servers may, for small hashes.
function commands.HSCAN(key)
  return { '0', commands.HGETALL(key) }
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
  local entry, added = value(key, 'hash') or { kind = 'hash', hash = {} }, 0
  keys[key] = entry
  local pairs_given = { ... }
  for i = 1, #pairs_given, 2 do
    added = added + (entry.hash[pairs_given[i]] and 0 or 1)
    entry.hash[pairs_given[i]] = pairs_given[i + 1]
  end
  return added
end

function commands.HDEL(key, ...)
  local entry, gone = value(key, 'hash'), 0
  for _, field in ipairs({ ... }) do
    if entry and entry.hash[field] then
      entry.hash[field], gone = nil, gone + 1
    end
  end
  if entry and next(entry.hash) == nil then
    keys[key] = nil
  end
  return gone
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
  ranged_items = ranged_items + math.max(0, math.min(to, #found) - math.max(from, 1) + 1)
  for i = math.max(from, 1), math.min(to, #found) do
    list[#list + 1] = found[i][1]
    if with_scores then
      list[#list + 1] = string.format('%.17g', found[i][2])
    end
  end
  return list
end

function commands.ZADD(key, ...)
  local given, from = { ... }, 1
  local present = given[1] == 'XX'
  if present then
    from = 2
  end
  local entry, added = value(key, 'zset') or { kind = 'zset', scores = {} }, 0
  for i = from, #given, 2 do
    local score, member = assert(tonumber(given[i]), 'ERR value is not a valid float'), given[i + 1]
    if entry.scores[member] or not present then
      added = added + (entry.scores[member] and 0 or 1)
      entry.scores[member], keys[key] = score, entry
    end
  end
  return added
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

function commands.SADD(key, ...)
  local entry, added = value(key, 'set') or { kind = 'set', members = {} }, 0
  keys[key] = entry
  for _, member in ipairs({ ... }) do
    added = added + (entry.members[member] and 0 or 1)
    entry.members[member] = true
  end
  return added
end

function commands.SMEMBERS(key)
  local entry, members = value(key, 'set'), {}
  for member in pairs(entry and entry.members or {}) do
    members[#members + 1] = member
  end
  table.sort(members)
  return members
end

-- Entries of a stream have ids `NUMBER-0` here.
local function number_of(id)
  return id == '-' and 0 or id == '+' and math.huge or tonumber(string.match(id, '^(%d+)-0$'))
end

local function entries(key, first, last)
  local entry, found = value(key, 'stream'), {}
  for _, item in ipairs(entry and entry.items or {}) do
    if item.number >= number_of(first) and item.number <= number_of(last) then
      found[#found + 1] = { item.number .. '-0', item.fields }
    end
  end
  return found
end

function commands.XADD(key, id, ...)
  local entry = value(key, 'stream') or { kind = 'stream', items = {}, last = 0 }
  local number = number_of(id)
  assert(number > entry.last, 'ERR The ID specified in XADD is equal or smaller than the target stream top item')
  keys[key], entry.last = entry, number
  entry.items[#entry.items + 1] = { number = number, fields = { ... } }
  return id
end

function commands.XLEN(key)
  local entry = value(key, 'stream')
  return entry and #entry.items or 0
end

function commands.XDEL(key, id)
  local entry = value(key, 'stream')
  for i, item in ipairs(entry and entry.items or {}) do
    if item.number == number_of(id) then
      table.remove(entry.items, i)
      return 1
    end
  end
  return 0
end

function commands.XRANGE(key, first, last, _, count)
  local found = entries(key, first, last)
  return { unpack(found, 1, math.min(#found, count and integer(count) or #found)) }
end

function commands.XREVRANGE(key, last, first, _, count)
  local found, backwards = entries(key, first, last), {}
  for i = #found, math.max(1, count and #found - integer(count) + 1 or 1), -1 do
    backwards[#backwards + 1] = found[i]
  end
  return backwards
end

-- All at once. Of globs, only `*`, `?` and escaped characters.
function commands.SCAN(_, _, glob)
  local pattern = string.gsub(glob, '(\\?)(.)', function(escape, character)
    local any = escape == '' and ({ ['*'] = '.*', ['?'] = '.' })[character]
    return any or string.gsub(character, '%p', '%%%0')
  end)
  local found = {}
  for key in pairs(keys) do
    if string.find(key, '^' .. pattern .. '$') and value(key) then
      found[#found + 1] = key
    end
  end
  table.sort(found)
  return { '0', found }
end

function commands.PUBLISH(channel, text)
  publish(channel, text)
  return 0
end

local READS = { SCAN = true, PTTL = true, EXISTS = true, HLEN = true, HSCAN = true, SMEMBERS = true, XLEN = true, XRANGE = true, XREVRANGE = true, PUBLISH = true, ZSCORE = true, ZRANGEBYSCORE = true, ZRANGE = true, ZCOUNT = true, ZCARD = true, TIME = true, GET = true, LLEN = true, LINDEX = true, LRANGE = true, HGETALL = true, HGET = true, HMGET = true }

local function call(name, ...)
  local command = commands[name] or error('ERR unknown command ' .. name, 0)
  calls = calls + 1
  if not READS[name] then
    if refusal then
      error(refusal, 0)
    end
    writes = writes + 1
  end
  local count, one, two, three = select('#', ...), ...
  local plain = (count < 1 or type(one) == 'string') and (count < 2 or type(two) == 'string')
  if count <= 3 and plain and (count < 3 or type(three) == 'string') then
    return command(...) -- most calls, without a table
  end
  local given = { ... }
  for i = 1, count do
    given[i] = argument(given[i])
  end
  return command(unpack(given))
end

redis = {
  sha1hex = function(text)
    return sha1hex(text)
  end,
  error_reply = function(text)
    return { err = text }
  end,
  call = call,
  pcall = function(...)
    local ok, result = pcall(call, ...)
    if not ok then
      return { err = result }
    end
    return result
  end,
}

-- What scripts see; none of them adds to it.
local environment = {}
for name, global in pairs(_G) do
  environment[name] = global
end
setmetatable(environment, {
  __newindex = function(_, name)
    error('Script attempted to access nonexistent global variable ' .. tostring(name))
  end,
})

-- Runs a loaded script.
local function run(script, KEYS_, ARGV_)
  allowed = {}
  for _, key in ipairs(KEYS_) do
    allowed[key] = true
  end
  rawset(environment, 'KEYS', KEYS_)
  rawset(environment, 'ARGV', ARGV_)
  setfenv(script, environment)
  local ok, reply = pcall(script)
  allowed = nil
  if not ok then
    error(reply, 0)
  end
  return reply
end

-- Runs a loaded script; answers as Redis would, numbers cut to integers.
local function eval(script, KEYS_, ARGV_)
  local reply = run(script, KEYS_, ARGV_)
  if type(reply) == 'string' then
    return reply
  end
  for i, number in ipairs(reply) do
    assert(type(number) == 'number', 'not a number at ' .. i)
    assert(number == math.floor(number), 'a fraction at ' .. i .. ' would be cut')
  end
  return reply
end

local function copied(of)
  if type(of) ~= 'table' then
    return of
  end
  local copy = {}
  for key, item in pairs(of) do
    copy[key] = copied(item)
  end
  return copy
end

return {
  eval = eval,
  run = run,
  call = call,
  -- As a client's command: errors are texts.
  command = call,
  writes = function()
    return writes
  end,
  calls = function()
    return calls
  end,
  ranged_items = function()
    return ranged_items
  end,
  type_of = function(key)
    return keys[key] and keys[key].kind or 'none'
  end,
  ttl = function(key)
    return keys[key] and keys[key].ttl or -2
  end,
  set_time = function(seconds, micros)
    time, now_ms = { seconds, micros }, seconds * 1000 + math.floor(micros / 1000)
  end,
  -- From now on keys expire.
  expire = function()
    expiring = true
  end,
  -- Writes are refused with this error; nil: they are not.
  refuse = function(with)
    refusal = with
  end,
  -- Evicts the keys of which the pattern is a part; returns how many.
  evict = function(pattern)
    local gone = 0
    for key in pairs(keys) do
      if string.find(key, pattern) then
        keys[key], gone = nil, gone + 1
      end
    end
    return gone
  end,
  names = function()
    local names = {}
    for key in pairs(keys) do
      names[#names + 1] = key
    end
    table.sort(names)
    return names
  end,
  -- Takes a key out, and puts it into another server, with the time that it has left.
  take = function(key)
    local entry = value(key)
    keys[key] = nil
    if entry and entry.expires then
      entry.expires = entry.expires - now_ms
    end
    return entry
  end,
  put = function(key, entry)
    keys[key] = entry
    entry.expires = entry.expires and living(entry.expires)
  end,
  -- All data, to be restored.
  copy = function()
    return copied(keys)
  end,
  restore = function(data)
    keys = copied(data or {})
  end,
}

-- Reports what the ACL user may do. Only `rlctl doctor` runs this, by EVAL.
--
-- KEYS  [1] a key of ours
-- ARGV  [1] a channel of ours [2] a channel, and key, of others (not in KEYS: those need permission)
-- Reply [1] commands that the limiter or rlctl needs but may not use, each a text;
--       [2] what the user may do but need not: commands, and `other keys`, `other channels`
--
-- Servers before Redis 7.0 cannot check: then both are empty. Every command has all its arguments:
-- checking an EVALSHA without its number of keys ends Valkey 9.1 with a segmentation fault.
local may = redis.acl_check_cmd
if not may then
  return { {}, {} }
end

local key, channel = KEYS[1], ARGV[1]
local needed = {
  { 'PING' }, { 'TIME' }, { 'EVALSHA', '0', '0' }, { 'SCRIPT', 'LOAD', '' }, { 'SCRIPT', 'EXISTS', '' },
  { 'GET', key }, { 'SET', key, 'v' }, { 'DEL', key }, { 'UNLINK', key }, { 'SCAN', '0' },
  { 'PTTL', key }, { 'PEXPIRE', key, '1' }, { 'PERSIST', key }, { 'RENAME', key, key },
  { 'HGET', key, 'f' }, { 'HSET', key, 'f', 'v' }, { 'HDEL', key, 'f' }, { 'HMGET', key, 'f' },
  { 'HLEN', key }, { 'HGETALL', key }, { 'HSCAN', key, '0' }, { 'LINDEX', key, '0' },
  { 'LLEN', key }, { 'LRANGE', key, '0', '1' }, { 'LSET', key, '0', 'v' },
  { 'LTRIM', key, '0', '1' }, { 'RPUSH', key, 'v' }, { 'XADD', key, '*', 'f', 'v' },
  { 'XDEL', key, '0-1' }, { 'XLEN', key }, { 'XRANGE', key, '-', '+' },
  { 'XREVRANGE', key, '+', '-' }, { 'ZADD', key, '1', 'm' }, { 'ZCARD', key },
  { 'ZREMRANGEBYSCORE', key, '0', '1' }, { 'ZCOUNT', key, '0', '1' }, { 'ZRANGE', key, '0', '1' },
  { 'ZRANGEBYSCORE', key, '0', '1' }, { 'ZREM', key, 'm' }, { 'ZSCORE', key, 'm' }, { 'SADD', key, 'm' }, { 'SMEMBERS', key },
  { 'PUBLISH', channel, '' }, { 'SUBSCRIBE', channel },
}
local unneeded = {
  { 'FLUSHALL' }, { 'FLUSHDB' }, { 'CONFIG', 'SET', 'dir', '/' }, { 'SHUTDOWN' }, { 'DEBUG', 'SLEEP', '0' },
  { 'ACL', 'SETUSER', 'x' }, { 'REPLICAOF', 'NO', 'ONE' }, { 'MODULE', 'LOAD', 'x' }, { 'KEYS', '*' },
}

-- A command that is unknown to this server is not permitted.
local function permitted(command)
  local known, yes = pcall(may, unpack(command))
  return known and yes
end

local lacking, spare = {}, {}
for _, command in ipairs(needed) do
  if not permitted(command) then
    lacking[#lacking + 1] = command[1]
  end
end
for _, command in ipairs(unneeded) do
  if permitted(command) then
    spare[#spare + 1] = command[1]
  end
end
if permitted({ 'GET', ARGV[2] }) then
  spare[#spare + 1] = 'other keys'
end
if permitted({ 'SUBSCRIBE', ARGV[2] }) then
  spare[#spare + 1] = 'other channels'
end
return { lacking, spare }

-- Makes one edit of a domain's record, all of it or nothing: compares the revision, writes, appends
-- to the history, publishes.
--
-- KEYS  [1] the record (HASH), [2] the history (STREAM), [3] the limits (HASH), [4] what changed
--       (ZSET), then the overrides (HASH) of each limit in ARGV's last part, then staged HASHes: of the
--       limits if those are `staged`, and of each of the overrides that are, in their order
-- ARGV  [1] the revision number that the edit is based on; '' where there was no record or a
--           deleted one; '*' for any, if there is a record that is not deleted (a reset)
--       [2] its digest, in hex ('' with '' and '*')
--       [3] operation: fields, edit, delete, override, reset or credit
--       [4] who [5] why [6] before [7] after [8] the limit concerned, if one: for the history;
--           an override's `before` is what is stored of it
--       [9] the domain's own fields as JSON; '' leaves them
--       [10] channel [11] the domain, published there with the new revision
--       [12] entries and [13] bytes that the history keeps at most
--       [14] overrides that the domain may have [15] bytes of limits that it may have
--       [16] how many changes are kept
--       [17] a digest of [7] and of the limits that are written
--       [18] the bytes of all limits in a snapshot then; '' leaves them
--       [19] the slot of the bucket, of an edit of one bucket of [8]: its generation becomes the new
--            revision, and that of its latest reset if this is one; else ''
--       then: n, and n names of limits whose generation becomes the new revision, or '*' for all of
--             them; a reset also sets their reset revision to it;
--             n, and n names of limits that are deleted;
--             keep, or staged (the staged hash replaces them), its bytes and its fields; n, and n pairs
--             (name, text) of limits as they are stored: a place of 16 digits, then JSON;
--             n, and for each of n limits' overrides: keep, clear (deletes the old ones first) or
--             staged (the staged hash replaces them); m, and m pairs (field, value), value '' removes,
--             or the m fields of the staged hash without them
-- Reply [1] 1 written, 0 conflict, 2 a record of another format, 3 a staged hash is gone or not whole,
--           4 too many overrides, [2] of them, 5 limits of too many bytes, [2] of them;
--       [2] the current revision number, 0 for none or a lost one; [3] its digest; [4] 1 if it is deleted
--
-- What changed is a set of members scored by revision: the name of a limit that was written, raised
-- or deleted; `NAME:FIELD`, an override; `NAME!`, all overrides of a limit went before those; and
-- `=DIGEST`, an edit. A reader that finds the edit that it has can read all that changed since.
local FORMAT = '2'
local PLACE = 16
-- An edit that changes more is read whole.
local NAMED_MAX = 1000
local record, history, limits, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local FIXED = 4

local known = redis.call('HMGET', record,
  'format', 'revision', 'digest', 'deleted', 'history_bytes', 'overrides', 'count', 'bytes')
local format, number, digest, deleted = known[1], known[2], known[3] or '', known[4]
local history_bytes = tonumber(known[5] or 0)
if format and format ~= FORMAT then
  return { 2, 0, format, 0 }
end
local count, bytes = tonumber(known[7] or 0), tonumber(known[8] or 0)
-- A record whose limits were evicted is lost, not empty.
local lost = count > 0 and redis.call('HLEN', limits) == 0

local expected = ARGV[1]
local matches
if expected == '*' then
  matches = number and not deleted and not lost
elseif expected == '' then
  matches = not number or deleted or lost
else
  matches = number == expected and digest == ARGV[2] and not deleted and not lost
end
if not matches then
  return { 0, tonumber(not lost and number or 0), digest, deleted and 1 or 0 }
end

local at = 20
local function take()
  at = at + 1
  return ARGV[at - 1]
end
local function take_list()
  local list = {}
  for i = 1, tonumber(take()) do
    list[i] = take()
  end
  return list
end
-- All limits: one field, `g`, below which no limit's own generation counts.
local all = ARGV[at] == '*'
local raise = all and take() and {} or take_list()
local delete = take_list()
local stage_limits = take() == 'staged'
local staged_bytes = stage_limits and tonumber(take()) or 0
-- How many fields each staged hash has, in the order of their keys.
local whole_with = stage_limits and { tonumber(take()) } or {}
local writes = {}
for i = 1, 2 * tonumber(take()) do
  writes[i] = take()
end
local overridden = tonumber(take())
local first_staged = FIXED + overridden + 1

-- Before the first write: a key of another type is an error, and an error must change nothing.
local last = redis.call('XREVRANGE', history, '+', '-', 'COUNT', 1)[1]
local edits_known = redis.call('ZCARD', changes)
for i = FIXED + 1, #KEYS do
  redis.call('HLEN', KEYS[i])
end

-- Limits that another record left behind are none of those that are written now.
local empty = expected == '' or ARGV[3] == 'delete'
local bytes_before = bytes
if empty then
  count, bytes = 0, 0
end
if stage_limits then
  count, bytes = whole_with[1], staged_bytes
else
  local function size(name)
    local had = not empty and redis.call('HGET', limits, name)
    return had and 1 or 0, had and #had - PLACE or 0
  end
  for i = 1, #writes, 2 do
    local had, length = size(writes[i])
    count, bytes = count + 1 - had, bytes + #writes[i + 1] - PLACE - length
  end
  for _, name in ipairs(delete) do
    local had, length = size(name)
    count, bytes = count - had, bytes - length
  end
end
if bytes > tonumber(ARGV[15]) and bytes > bytes_before then
  return { 5, bytes, digest, 0 }
end

-- The number is kept in the record: to count 10,000 hashes takes longer than a check may.
-- Those of a lost record are none of this one's.
local overrides, reread = expected ~= '' and tonumber(known[6] or 0) or 0, at
for i = FIXED + 1, FIXED + overridden do
  local how, fields = take(), tonumber(take())
  if how == 'keep' then
    for _ = 1, fields do
      local field, value = take(), take()
      local had = redis.call('HGET', KEYS[i], field)
      overrides = overrides + (value == '' and 0 or 1) - (had and 1 or 0)
    end
  else
    if how == 'staged' then
      whole_with[#whole_with + 1] = fields
    else
      at = at + 2 * fields
    end
    overrides = overrides + fields - (expected ~= '' and redis.call('HLEN', KEYS[i]) or 0)
  end
end
-- Steps of one that were written before a failover may be gone.
for i, fields in ipairs(whole_with) do
  if redis.call('HLEN', KEYS[first_staged + i - 1]) ~= fields then
    return { 3, tonumber(number or 0), digest, 0 }
  end
end
overrides, at = math.max(overrides, 0), reread
if overrides > tonumber(ARGV[14]) and overrides > tonumber(known[6] or 0) then
  return { 4, overrides, digest, 0 }
end

-- Checked first: a missing permission would stop the script after half of the edit was written.
local permitted = redis.acl_check_cmd or function()
  return true
end
for _, command in ipairs({
  { 'HSET', record, 'f', 'v' }, { 'HDEL', record, 'f' }, { 'HGET', record, 'f' },
  { 'HSET', limits, 'f', 'v' }, { 'ZADD', changes, '1', 'm' }, { 'ZSCORE', changes, 'm' },
  { 'ZRANGE', changes, '0', '0' }, { 'ZREMRANGEBYSCORE', changes, '0', '1' },
  { 'UNLINK', record }, { 'RENAME', record, history }, { 'PERSIST', record }, { 'TIME' },
  { 'XADD', history, '*', 'f', 'v' }, { 'XLEN', history }, { 'XRANGE', history, '-', '+' },
  { 'XDEL', history, '0-1' }, { 'PUBLISH', ARGV[10], '' },
}) do
  if not permitted(unpack(command)) then
    return redis.error_reply('NOPERM an edit of limits needs the permission for ' .. command[1])
  end
end

-- A lost record continues from its history, so that no revision number is used twice.
local newest = tonumber(number or 0)
if last then
  newest = math.max(newest, tonumber(string.match(last[1], '^%d+')))
end
local revision = string.format('%.0f', newest + 1)
local time = redis.call('TIME')
-- Something else made edits, or the set was lost: it lacks changes since older revisions.
local chained = edits_known > 0
  and tonumber(redis.call('ZSCORE', changes, '=' .. digest) or -1) == tonumber(number or 0)
local at_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- Chained, so that histories that diverged (a backup was restored) never share a digest again.
-- Of limits only their digest: to hash megabytes here takes longer than the rest of the edit.
digest = string.sub(redis.sha1hex(table.concat(
  { digest, revision, at_ms, ARGV[3], ARGV[4], ARGV[5], ARGV[8], ARGV[17] }, '\n')), 1, 16)

redis.call('HSET', record,
  'format', FORMAT, 'revision', revision, 'digest', digest,
  'overrides', overrides, 'count', count, 'bytes', string.format('%.0f', bytes))
if ARGV[9] ~= '' then
  redis.call('HSET', record, 'domain', ARGV[9])
end
if ARGV[3] == 'delete' then
  redis.call('HSET', record, 'deleted', '1')
elseif deleted then
  redis.call('HDEL', record, 'deleted')
end
-- Many fields a call: a call for each of 10,000 limits holds up every check for 10 ms.
local function each_thousand(list, call)
  for from = 1, #list, 1000 do
    call(unpack(list, from, math.min(from + 999, #list)))
  end
end
local marks, marked = {}, {}
local function mark(member)
  if not marked[member] then
    marked[member] = true
    marks[#marks + 1], marks[#marks + 2] = revision, member
  end
end
local raised, gone = all and { 'g', revision } or {}, {}
if ARGV[18] ~= '' then
  raised[#raised + 1], raised[#raised + 2] = 'snapshot_bytes', ARGV[18]
end
for _, name in ipairs(raise) do
  mark(name)
  raised[#raised + 1], raised[#raised + 2] = 'g:' .. name, revision
  if ARGV[3] == 'reset' then
    raised[#raised + 1], raised[#raised + 2] = 'r:' .. name, revision
  end
end
for _, name in ipairs(delete) do
  mark(name)
  gone[#gone + 1], gone[#gone + 2], gone[#gone + 3] = 'g:' .. name, 'r:' .. name, 'b:' .. name
end
-- Of single buckets, by their slots: `SLOT:GENERATION:RESET`, separated by commas. Those later than the
-- limit's own take bytes of the snapshot of all limits: one more than policy::BucketEdits::most raises the limit.
local slot = ARGV[19]
if slot ~= '' then
  local field, own = 'b:' .. ARGV[8], 'g:' .. ARGV[8]
  local slots, later, reset = {}, 1, ARGV[3] == 'reset' and revision
  local had = redis.call('HMGET', record, field, own, 'g')
  local since = math.max(tonumber(had[2] or 0), tonumber(had[3] or 0))
  for other, of, was in string.gmatch(had[1] or '', '(%d+):(%d+):(%d+)') do
    if other ~= slot then
      slots[#slots + 1] = other .. ':' .. of .. ':' .. was
      later = later + (tonumber(of) > since and 1 or 0)
    else
      reset = reset or was
    end
  end
  if later > 4 + (count > 0 and math.floor(512 / count) or 0) then
    raised[#raised + 1], raised[#raised + 2] = own, revision
  end
  slots[#slots + 1] = slot .. ':' .. revision .. ':' .. (reset or '0')
  raised[#raised + 1], raised[#raised + 2] = field, table.concat(slots, ',')
end
each_thousand(raised, function(...)
  redis.call('HSET', record, ...)
end)
each_thousand(gone, function(...)
  redis.call('HDEL', record, ...)
end)

local staged = first_staged
local function replace(key)
  redis.call('RENAME', KEYS[staged], key)
  redis.call('PERSIST', key)
  staged = staged + 1
end
if empty or stage_limits then
  redis.call('UNLINK', limits)
end
if stage_limits then
  replace(limits)
else
  each_thousand(writes, function(...)
    redis.call('HSET', limits, ...)
  end)
  each_thousand(delete, function(...)
    redis.call('HDEL', limits, ...)
  end)
end

for i = 1, #writes, 2 do
  mark(writes[i])
end
if slot ~= '' then
  mark(ARGV[8])
end

-- A lost record does not name the limits that went with it.
local before, whole = ARGV[6], all or stage_limits or lost or not chained
for i = FIXED + 1, FIXED + overridden do
  local how = take()
  -- Names of limits have no colon.
  local name = string.match(KEYS[i], '[^:]*$')
  if how ~= 'keep' and redis.call('UNLINK', KEYS[i]) > 0 then
    mark(name .. '!')
  end
  if how == 'staged' then
    replace(KEYS[i])
    whole = true
  end
  local fields = tonumber(take())
  for _ = 1, how == 'staged' and 0 or fields do
    local field, value = take(), take()
    mark(name .. ':' .. field)
    if ARGV[3] == 'override' then
      before = redis.call('HGET', KEYS[i], field) or ''
    end
    if value == '' then
      redis.call('HDEL', KEYS[i], field)
    else
      redis.call('HSET', KEYS[i], field, value)
    end
  end
end

if whole or #marks > 2 * NAMED_MAX then
  redis.call('UNLINK', changes)
  marks = {}
end
marks[#marks + 1], marks[#marks + 2] = revision, '=' .. digest
each_thousand(marks, function(...)
  redis.call('ZADD', changes, ...)
end)
local over = redis.call('ZCARD', changes) - ARGV[16]
if over > 0 then
  local last = redis.call('ZRANGE', changes, over - 1, over - 1, 'WITHSCORES')
  redis.call('ZREMRANGEBYSCORE', changes, '-inf', last[2])
end

redis.call('XADD', history, revision .. '-0',
  'at', at_ms, 'op', ARGV[3], 'who', ARGV[4], 'why', ARGV[5],
  'before', before, 'after', ARGV[7], 'limit', ARGV[8], 'digest', digest)
local entry_bytes = #ARGV[4] + #ARGV[5] + #before + #ARGV[7]
history_bytes = history_bytes + entry_bytes
local counted = { who = true, why = true, before = true, after = true }
local entries, entries_max, bytes_max =
  redis.call('XLEN', history), tonumber(ARGV[12]), tonumber(ARGV[13])
while entries > 1 and (entries > entries_max or history_bytes > bytes_max) do
  local oldest = redis.call('XRANGE', history, '-', '+', 'COUNT', 1)[1]
  local fields = oldest[2]
  for i = 1, #fields, 2 do
    if counted[fields[i]] then
      history_bytes = history_bytes - #fields[i + 1]
    end
  end
  redis.call('XDEL', history, oldest[1])
  entries = entries - 1
end
if entries == 1 then
  history_bytes = entry_bytes
end
redis.call('HSET', record, 'history_bytes', string.format('%.0f', history_bytes))
redis.call('PUBLISH', ARGV[10], ARGV[11] .. ' ' .. revision .. ' ' .. digest)
return { 1, tonumber(revision), digest, ARGV[3] == 'delete' and 1 or 0 }

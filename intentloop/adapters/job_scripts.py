"""The steps of a job's life as scripts, so that each happens whole or not at all (`jobs.py` tells what they mean).

KEYS: 1 stream, 2 hash of buried jobs, 3 sorted set of done ids by time. ARGV[1] is the prefix of the jobs' hashes; all
of them carry the queue's hash tag, so they live in one slot of a cluster. Fields of a job's hash: `payload`, `status`,
`tries` (counted claims since it last got further), `fence` (all claims), `entry` (stream id), `reason`, `note`.
"""

_GROUP = """
local function group()
  if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM') end
end
"""

_OWNED = """
local key = ARGV[1] .. ARGV[2]
local function owned()
  return redis.call('HGET', key, 'fence') == ARGV[4] and redis.call('HGET', key, 'entry') == ARGV[3]
end
local function leave()
  redis.call('XACK', KEYS[1], 'workers', ARGV[3])
  redis.call('XDEL', KEYS[1], ARGV[3])
end
"""

PUT = (
    _GROUP
    + """
local key = ARGV[1] .. ARGV[2]
if redis.call('EXISTS', key) == 1 or redis.call('ZSCORE', KEYS[3], ARGV[2]) then return 0 end
group()
local entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[2])
redis.call('HSET', key, 'payload', ARGV[3], 'status', 'waiting', 'tries', 0, 'fence', 0, 'entry', entry)
return 1
"""
)

# ARGV: 2 worker, 3 count, 4 lease, 5 most tries, 6 now
CLAIM = (
    _GROUP
    + """
group()
local taken = {}
local function start(entry)
  local fields = entry[2]
  if not fields then return end
  local id = fields[2]
  local key = ARGV[1] .. id
  local tries = redis.call('HINCRBY', key, 'tries', 1)
  if tries > tonumber(ARGV[5]) then
    local last = redis.call('HGET', key, 'reason') or 'its workers died or never reported back'
    local reason = 'given up after ' .. (tries - 1) .. ' tries: ' .. last
    redis.call('XACK', KEYS[1], 'workers', entry[1])
    redis.call('XDEL', KEYS[1], entry[1])
    redis.call('HSET', KEYS[2], id, reason)
    redis.call('HSET', key, 'status', 'buried', 'reason', reason, 'at', ARGV[6])
    return
  end
  local fence = redis.call('HINCRBY', key, 'fence', 1)
  redis.call('HSET', key, 'status', 'running')
  local note = redis.call('HGET', key, 'note') or ''
  table.insert(taken, {id, redis.call('HGET', key, 'payload'), tries, entry[1], fence, note})
end
local expired = redis.call('XAUTOCLAIM', KEYS[1], 'workers', ARGV[2], ARGV[4], '0-0', 'COUNT', ARGV[3])
for _, entry in ipairs(expired[2]) do start(entry) end
local left = tonumber(ARGV[3]) - #taken
if left > 0 then
  local fresh = redis.call('XREADGROUP', 'GROUP', 'workers', ARGV[2], 'COUNT', left, 'STREAMS', KEYS[1], '>')
  if fresh then
    for _, entry in ipairs(fresh[1][2]) do start(entry) end
  end
end
return taken
"""
)

# ARGV: 2 id, 3 entry, 4 fence, 5 worker
RENEW = (
    _OWNED
    + """
if not owned() or redis.call('HGET', key, 'status') ~= 'running' then return 0 end
redis.call('XCLAIM', KEYS[1], 'workers', ARGV[5], 0, ARGV[3], 'JUSTID')
return 1
"""
)

# ARGV: 2 id, 3 entry, 4 fence, 5 note
NOTE = (
    _OWNED
    + """
if not owned() or redis.call('HGET', key, 'status') ~= 'running' then return 0 end
redis.call('HSET', key, 'note', ARGV[5])
return 1
"""
)

# ARGV: 2 id, 3 entry, 4 fence
PROGRESSED = (
    _OWNED
    + """
if not owned() or redis.call('HGET', key, 'status') ~= 'running' then return 0 end
redis.call('HSET', key, 'tries', 1)
return 1
"""
)

# ARGV: 2 id, 3 entry, 4 fence, 5 now; the hash stays a day without its payload, so that a repeat is recognised
DONE = (
    _OWNED
    + """
if not owned() then return 0 end
local status = redis.call('HGET', key, 'status')
if status == 'done' then return 1 end
if status ~= 'running' then return 0 end
leave()
redis.call('ZADD', KEYS[3], ARGV[5], ARGV[2])
redis.call('HSET', key, 'status', 'done')
redis.call('HDEL', key, 'payload', 'note')
redis.call('PEXPIRE', key, 86400000)
return 1
"""
)

# ARGV: 2 id, 3 entry, 4 fence, 5 reason, 6 most tries (0: the try does not count), 7 now
FAIL = (
    _OWNED
    + """
if not owned() or redis.call('HGET', key, 'status') ~= 'running' then return 0 end
leave()
redis.call('HSET', key, 'reason', ARGV[5], 'at', ARGV[7])
local limit = tonumber(ARGV[6])
if limit == 0 then
  redis.call('HINCRBY', key, 'tries', -1)
elseif tonumber(redis.call('HGET', key, 'tries')) >= limit then
  redis.call('HSET', key, 'status', 'buried')
  redis.call('HSET', KEYS[2], ARGV[2], 'given up after ' .. limit .. ' tries: ' .. ARGV[5])
  return 1
end
local entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[2])
redis.call('HSET', key, 'status', 'waiting', 'entry', entry)
return 1
"""
)

# ARGV: 2 id, 3 entry, 4 fence, 5 reason, 6 now
BURY = (
    _OWNED
    + """
if not owned() then return 0 end
local status = redis.call('HGET', key, 'status')
if status == 'buried' then return 1 end
if status ~= 'running' then return 0 end
leave()
redis.call('HSET', key, 'status', 'buried', 'reason', ARGV[5], 'at', ARGV[6])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[5])
return 1
"""
)

COUNTS = """
local total = redis.call('XLEN', KEYS[1])
local running = 0
if redis.call('EXISTS', KEYS[1]) == 1 then running = redis.call('XPENDING', KEYS[1], 'workers')[1] end
return {total - running, running, redis.call('HLEN', KEYS[2]), redis.call('ZCARD', KEYS[3])}
"""

# ARGV: 2 oldest time that stays, 3 lease
FORGET = """
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. ARGV[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], 'workers')) do
    local consumer = {}
    for index = 1, #row, 2 do consumer[row[index]] = row[index + 1] end
    if consumer['pending'] == 0 and consumer['idle'] > 10 * tonumber(ARGV[3]) then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'workers', consumer['name'])
    end
  end
end
return gone
"""

ALL = {
    "put": PUT,
    "claim": CLAIM,
    "renew": RENEW,
    "note": NOTE,
    "progressed": PROGRESSED,
    "done": DONE,
    "fail": FAIL,
    "bury": BURY,
    "counts": COUNTS,
    "forget": FORGET,
}

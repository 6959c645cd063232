// One franz-go client, told what to do through a pipe: a JSON object a line in, one a line out.
//
//	{"kind": "producer", "bootstrap": "127.0.0.1:9092", "id": "writer", ...}
//
// is the first, and says what it is for. src/sexton/verify/clients/franz.py is the other end. Nothing is added to what franz-go does by itself.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// asked is what the process is for; it does not change.
type asked struct {
	Kind           string  `json:"kind"` // producer, consumer, session
	Bootstrap      string  `json:"bootstrap"`
	ID             string  `json:"id"` // the transactional id
	TimeoutMs      int     `json:"timeout_ms"`
	CallTimeoutMs  int     `json:"call_timeout_ms"`
	OverheadMs     int     `json:"overhead_ms"` // how long an answer may take longer than the broker was asked to take
	Isolation      string  `json:"isolation"`
	Group          string  `json:"group"`
	MaxPollRecords int     `json:"max_poll_records"`
	FetchBytes     int32   `json:"max.partition.fetch.bytes"`
	KeepsControl   bool    `json:"keeps_control"` // transactions' markers are told of, too: they move the position
	Security       secured `json:"security"`
}

type place struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

type question struct {
	Do        string   `json:"do"`
	Topic     string   `json:"topic"`
	Topics    []string `json:"topics"`
	Partition int32    `json:"partition"`
	Values    [][]byte `json:"values"`
	Key       []byte   `json:"key"`
	Headers   []header `json:"headers"`
	Places    []place  `json:"places"`
	Commit    bool     `json:"commit"`
	TimeoutMs int      `json:"timeout_ms"`

	Partitions  int32             `json:"partitions"`
	Replication int16             `json:"replication"`
	Settings    map[string]string `json:"settings"`
}

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

type record struct {
	place
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
	TimestampMs int64    `json:"timestamp_ms"`
	Appended    bool     `json:"appended"` // whether the timestamp is the broker's
	Control     bool     `json:"control"`
}

type answer struct {
	Error     string   `json:"error,omitempty"`
	Code      string   `json:"code,omitempty"` // Kafka's name for it, if it came from a broker
	Offsets   []int64  `json:"offsets"`
	Records   []record `json:"records"`
	Committed bool     `json:"committed"`
}

// sent is what was handed to the client since the last flush, and what became of it.
type sent struct {
	lock    sync.Mutex
	offsets []int64
	failed  error
}

// client is a producer, a consumer, or a session that is both.
type client struct {
	asked   asked
	kafka   *kgo.Client
	session *kgo.GroupTransactSession
	sent    *sent
	joins   bool // its group, whose name it has in any case
}

func main() {
	var wanted asked
	lines := bufio.NewReader(os.Stdin)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return // whoever started it has gone
	}
	if err := json.Unmarshal(first, &wanted); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	me := &client{asked: wanted, sent: &sent{}}
	if wanted.Kind == "producer" || wanted.Kind == "admin" {
		if err := me.open(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // whoever asked has gone
		}
		var told question
		if err := json.Unmarshal(line, &told); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		said, err := me.do(told)
		if err != nil {
			said.Error = err.Error()
			var known *kerr.Error
			if errors.As(err, &known) {
				said.Code = known.Message
			}
		}
		if err := answers.Encode(said); err != nil {
			return
		}
	}
}

func (me *client) open(more ...kgo.Opt) error {
	options := append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(me.asked.Bootstrap, ",")...),
		kgo.RequestTimeoutOverhead(time.Duration(me.asked.OverheadMs) * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}, more...)
	secrets, err := me.asked.Security.options()
	if err != nil {
		return err
	}
	options = append(options, secrets...)
	if me.asked.ID != "" {
		options = append(options,
			kgo.TransactionalID(me.asked.ID),
			kgo.TransactionTimeout(time.Duration(me.asked.TimeoutMs)*time.Millisecond),
		)
	}
	if me.asked.ID != "" || me.asked.Kind == "producer" {
		options = append(options,
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerLinger(5*time.Millisecond),
			kgo.ProducerBatchCompression(kgo.NoCompression()),
			kgo.RecordDeliveryTimeout(time.Duration(me.asked.CallTimeoutMs)*time.Millisecond),
		)
	}
	if me.asked.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if me.asked.Group != "" && me.joins {
		options = append(options, kgo.ConsumerGroup(me.asked.Group), kgo.DisableAutoCommit())
	}
	options = append(options,
		kgo.FetchMaxWait(100*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if me.asked.FetchBytes > 0 {
		options = append(options, kgo.FetchMaxPartitionBytes(me.asked.FetchBytes))
	}
	if me.asked.KeepsControl {
		options = append(options, kgo.KeepControlRecords())
	}
	if me.kafka != nil {
		me.kafka.Close() // it reads something else from now on
	}
	if me.asked.Kind == "session" {
		if me.session, err = kgo.NewGroupTransactSession(options...); err == nil {
			me.kafka = me.session.Client()
		}
	} else {
		me.kafka, err = kgo.NewClient(options...)
	}
	return err
}

func (me *client) do(told question) (answer, error) {
	limit := time.Duration(me.asked.CallTimeoutMs) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch told.Do {
	case "init":
		_, _, err := me.kafka.ProducerID(ctx)
		return answer{}, err
	case "begin":
		me.sent = &sent{}
		return answer{}, me.kafka.BeginTransaction()
	case "send":
		me.send(told)
		return answer{}, nil
	case "flush":
		return me.flush(ctx)
	case "end":
		return answer{}, me.end(ctx, told.Commit)
	case "end_session":
		committed, err := me.session.End(ctx, kgo.TransactionEndTry(told.Commit))
		return answer{Committed: committed}, err
	case "assign":
		starts := map[string]map[int32]kgo.Offset{}
		for _, each := range told.Places {
			if starts[each.Topic] == nil {
				starts[each.Topic] = map[int32]kgo.Offset{}
			}
			starts[each.Topic][each.Partition] = kgo.NewOffset().At(each.Offset)
		}
		return answer{}, me.open(kgo.ConsumePartitions(starts))
	case "subscribe":
		me.joins = true
		return answer{}, me.open(kgo.ConsumeTopics(told.Topics...))
	case "create":
		return answer{}, me.create(ctx, told)
	case "bounds":
		return me.bounds(ctx, told)
	case "poll":
		return me.poll(time.Duration(told.TimeoutMs) * time.Millisecond)
	case "close":
		if me.kafka != nil {
			me.kafka.Close()
		}
		return answer{}, nil
	}
	return answer{}, fmt.Errorf("nobody knows how to %s", told.Do)
}

func (me *client) send(told question) {
	mine := me.sent
	for _, value := range told.Values {
		mine.lock.Lock()
		number := len(mine.offsets)
		mine.offsets = append(mine.offsets, -1)
		mine.lock.Unlock()
		produced := &kgo.Record{Topic: told.Topic, Partition: told.Partition, Key: told.Key, Value: value}
		for _, each := range told.Headers {
			produced.Headers = append(produced.Headers, kgo.RecordHeader{Key: each.Key, Value: each.Value})
		}
		me.kafka.Produce(context.Background(), produced, func(done *kgo.Record, err error) {
			mine.lock.Lock()
			defer mine.lock.Unlock()
			if err == nil {
				mine.offsets[number] = done.Offset
			} else if mine.failed == nil {
				mine.failed = err
			}
		})
	}
}

func (me *client) flush(ctx context.Context) (answer, error) {
	mine := me.sent
	me.sent = &sent{}
	if err := me.kafka.Flush(ctx); err != nil {
		return answer{}, err
	}
	mine.lock.Lock()
	defer mine.lock.Unlock()
	return answer{Offsets: mine.offsets}, mine.failed
}

// end is what franz-go's documentation tells applications to do: flush before a commit, drop what waits before an abort.
func (me *client) end(ctx context.Context, commit bool) error {
	if !commit {
		if err := me.kafka.AbortBufferedRecords(ctx); err != nil {
			return err
		}
		return me.kafka.EndTransaction(ctx, kgo.TryAbort)
	}
	if err := me.kafka.Flush(ctx); err != nil {
		return err
	}
	return me.kafka.EndTransaction(ctx, kgo.TryCommit)
}

func (me *client) poll(timeout time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	fetched := me.kafka.PollRecords(ctx, me.asked.MaxPollRecords)
	said := answer{Records: []record{}}
	fetched.EachRecord(func(found *kgo.Record) {
		each := record{
			place:       place{found.Topic, found.Partition, found.Offset},
			Key:         found.Key,
			Value:       found.Value,
			TimestampMs: found.Timestamp.UnixMilli(),
			Appended:    found.Attrs.TimestampType() == 1,
			Control:     found.Attrs.IsControl(),
		}
		for _, one := range found.Headers {
			each.Headers = append(each.Headers, header{one.Key, one.Value})
		}
		said.Records = append(said.Records, each)
	})
	for _, each := range fetched.Errors() {
		if !errors.Is(each.Err, context.DeadlineExceeded) {
			return said, each.Err
		}
	}
	return said, nil
}

func (me *client) create(ctx context.Context, told question) error {
	wanted := kmsg.NewCreateTopicsRequestTopic()
	wanted.Topic, wanted.NumPartitions, wanted.ReplicationFactor = told.Topic, told.Partitions, told.Replication
	for name, value := range told.Settings {
		setting := kmsg.NewCreateTopicsRequestTopicConfig()
		setting.Name, setting.Value = name, kmsg.StringPtr(value)
		wanted.Configs = append(wanted.Configs, setting)
	}
	asked := kmsg.NewPtrCreateTopicsRequest()
	asked.Topics = append(asked.Topics, wanted)
	asked.TimeoutMillis = int32(me.asked.CallTimeoutMs)
	said, err := asked.RequestWith(ctx, me.kafka)
	if err != nil {
		return err
	}
	for _, topic := range said.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return err
		}
	}
	return nil
}

// bounds are the first offset of a partition, and the one behind the last that the client may be given.
func (me *client) bounds(ctx context.Context, told question) (answer, error) {
	if me.kafka == nil {
		if err := me.open(); err != nil {
			return answer{}, err
		}
	}
	said := answer{}
	for _, timestamp := range []int64{-2, -1} {
		offset, err := me.offsetAt(ctx, told.Topic, told.Partition, timestamp)
		if err != nil {
			return answer{}, err
		}
		said.Offsets = append(said.Offsets, offset)
	}
	return said, nil
}

func (me *client) offsetAt(ctx context.Context, topic string, partition int32, timestamp int64) (int64, error) {
	wanted := kmsg.NewListOffsetsRequestTopicPartition()
	wanted.Partition, wanted.Timestamp, wanted.CurrentLeaderEpoch = partition, timestamp, -1
	in := kmsg.NewListOffsetsRequestTopic()
	in.Topic = topic
	in.Partitions = append(in.Partitions, wanted)
	asked := kmsg.NewPtrListOffsetsRequest()
	asked.ReplicaID = -1
	if me.asked.Isolation == "read_committed" {
		asked.IsolationLevel = 1
	}
	asked.Topics = append(asked.Topics, in)
	said, err := asked.RequestWith(ctx, me.kafka)
	if err != nil {
		return 0, err
	}
	for _, topic := range said.Topics {
		for _, found := range topic.Partitions {
			return found.Offset, kerr.ErrorForCode(found.ErrorCode)
		}
	}
	return 0, errors.New("the broker said nothing of the partition")
}

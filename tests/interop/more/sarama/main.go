// Sarama as people use it: an idempotent writer, a member of a group, or who watches how far the group is, until the
// pipe is closed.
//
//	program writer|reader|monitor BOOTSTRAP TOPIC GROUP
//
// A writer prints `acked VALUE` for each record that was acknowledged, a reader `got PARTITION OFFSET VALUE` for each
// that it has handled, and commits it after that. A monitor prints `scraped MEMBERS PARTITION:COMMITTED:END ...` for each
// round in which it could ask for all of that. Nothing is added to what Sarama does by itself.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var out = struct {
	sync.Mutex
	*bufio.Writer
}{Writer: bufio.NewWriter(os.Stdout)}

func say(format string, values ...any) {
	out.Lock()
	defer out.Unlock()
	fmt.Fprintf(out.Writer, format+"\n", values...)
	out.Flush()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	role, brokers, topic, group := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], os.Args[4]
	over, end := context.WithCancel(context.Background())
	go func() { // whoever started us closes our input when it is over
		io.Copy(io.Discard, os.Stdin)
		end()
	}()
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.ClientID = "sarama-" + role
	switch role {
	case "writer":
		write(over, brokers, topic, config)
	case "reader":
		read(over, brokers, topic, group, config)
	default:
		monitor(over, brokers, topic, group, config)
	}
}

func write(over context.Context, brokers []string, topic string, config *sarama.Config) {
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 1000
	config.Producer.Retry.Backoff = 200 * time.Millisecond
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewAsyncProducer(brokers, config)
	check(err)
	var answered sync.WaitGroup
	go func() {
		for message := range producer.Successes() {
			say("acked %s", message.Value)
			answered.Done()
		}
	}()
	go func() {
		for failed := range producer.Errors() {
			check(failed)
		}
	}()
	for number := 0; over.Err() == nil; number++ {
		key, value := fmt.Sprintf("key-%d", number%20), fmt.Sprintf("%d", number)
		answered.Add(1)
		producer.Input() <- &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
		}
		time.Sleep(5 * time.Millisecond)
	}
	answered.Wait()
	check(producer.Close())
	say("done")
}

type handler struct{}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			say("got %d %d %s", message.Partition, message.Offset, message.Value)
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func read(over context.Context, brokers []string, topic, group string, config *sarama.Config) {
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Return.Errors = true
	members, err := sarama.NewConsumerGroup(brokers, group, config)
	check(err)
	go func() {
		for err := range members.Errors() {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	for over.Err() == nil {
		err := members.Consume(over, []string{topic}, handler{})
		if err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(200 * time.Millisecond)
		}
	}
	check(members.Close())
	say("done")
}

// monitor asks what kafka_exporter asks, in the versions that it uses unless told otherwise, and as it does: one client
// for all rounds, metadata and the ends of partitions through it; then, of each broker over a connection of its own for
// this round, the groups that it coordinates, their members, and what was committed for the partitions they have.
func monitor(over context.Context, brokers []string, topic, group string, config *sarama.Config) {
	config.Version = sarama.V2_0_0_0
	client, err := sarama.NewClient(brokers, config)
	check(err)
	for over.Err() == nil {
		if line, err := scrape(client, topic, group); err == nil {
			say("scraped %s", line)
		} else {
			fmt.Fprintln(os.Stderr, err)
		}
		select {
		case <-over.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	check(client.Close())
	say("done")
}

func scrape(client sarama.Client, topic, group string) (string, error) {
	if err := client.RefreshMetadata(); err != nil {
		return "", err
	}
	partitions, err := client.Partitions(topic)
	if err != nil {
		return "", err
	}
	for _, partition := range partitions {
		for _, asked := range []int64{sarama.OffsetNewest, sarama.OffsetOldest} {
			if _, err := client.GetOffset(topic, partition, asked); err != nil {
				return "", fmt.Errorf("offset %d of partition %d: %w", asked, partition, err)
			}
		}
		if _, err := client.InSyncReplicas(topic, partition); err != nil {
			return "", err
		}
	}
	for _, broker := range client.Brokers() {
		line, err := lag(client, broker, topic, group)
		if err != nil { // the others may know
			fmt.Fprintf(os.Stderr, "broker %d: %v\n", broker.ID(), err)
		} else if line != "" {
			return line, nil
		}
	}
	return "", fmt.Errorf("no broker knows group %s", group)
}

// lag returns an empty string if the broker does not coordinate the group.
func lag(client sarama.Client, broker *sarama.Broker, topic, group string) (string, error) {
	if err := broker.Open(client.Config()); err != nil && !errors.Is(err, sarama.ErrAlreadyConnected) {
		return "", err
	}
	defer broker.Close()
	listed, err := broker.ListGroups(&sarama.ListGroupsRequest{})
	if err != nil {
		return "", err
	}
	if listed.Err != sarama.ErrNoError {
		return "", listed.Err
	}
	if _, known := listed.Groups[group]; !known {
		return "", nil
	}
	described, err := broker.DescribeGroups(&sarama.DescribeGroupsRequest{Groups: []string{group}})
	if err != nil {
		return "", err
	}
	found := described.Groups[0]
	if found.Err != sarama.ErrNoError {
		return "", found.Err
	}
	request := sarama.OffsetFetchRequest{ConsumerGroup: group, Version: 4}
	for _, member := range found.Members {
		assignment, err := member.GetMemberAssignment()
		if err != nil {
			return "", err
		}
		if assignment == nil { // it has joined, and the leader has not assigned anything yet
			continue
		}
		for name, partitions := range assignment.Topics {
			for _, partition := range partitions {
				request.AddPartition(name, partition)
			}
		}
	}
	fetched, err := broker.FetchOffset(&request)
	if err != nil {
		return "", err
	}
	if fetched.Err != sarama.ErrNoError {
		return "", fetched.Err
	}
	line := fmt.Sprint(len(found.Members))
	for partition, block := range fetched.Blocks[topic] {
		if block.Err != sarama.ErrNoError {
			return "", block.Err
		}
		end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
		if err != nil {
			return "", err
		}
		line += fmt.Sprintf(" %d:%d:%d", partition, block.Offset, end)
	}
	return line, nil
}
